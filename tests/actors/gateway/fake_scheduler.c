/* fake_scheduler.c - see the header: a stand-in, not the product's scheduler. */
#include "fake_scheduler.h"

#include <check.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actor_shell.h"
#include "http_client.h"

enum { REQUESTS_MAX = 512, WIDTH_MAX = 24 };

typedef struct {
    uint64_t request; /* 0: free */
    uint32_t sent;
    uint32_t generation_max;
    uint32_t prompt_length;
    uint32_t width;
} work_t;

struct fake_scheduler {
    fake_script_t script;
    pid_t pid;
    pthread_mutex_t lock; /* guards seen; in memory that both processes share */
    fake_seen_t seen;
    actor_shell_t *shell;
    uint32_t gateway; /* peer index; ACTOR_PEER_NONE */
    work_t work[REQUESTS_MAX];
    uint64_t next_step_ns;
    uint64_t step;
};

static void
send_info(fake_scheduler_t *self, actor_outbox_t *outbox)
{
    static const uint8_t key[PROTO_HASH_SIZE_BYTES] = {7};
    uint32_t limit = self->script.model_len_max == 0 ? 4096 : self->script.model_len_max;
    proto_body_t body = {
        .model_info =
            {
                .model_name = proto_text("fake"),
                .fingerprint = proto_text("model=fake"),
                .vocab_size = 1000, /* more than the tokenizer has: some models do */
                .model_len_max = limit,
                .prompt_len_max = limit,
                .slot_count = self->script.no_executor ? 0 : 8,
                .queue_len_max = 64,
                .prefix_granularity = 16,
                .token_capacity = 65536,
                .page_hash_key = {key, sizeof key},
            },
    };
    actor_peer_t to = {self->gateway};
    actor_outbox_push(outbox, to, PROTO_KIND_MODEL_INFO, 0, &body);
    proto_body_t load = {.load = {.running = 1, .blocks_total = 100, .blocks_free = 60}};
    load.load.blocks_cached = 15;
    actor_outbox_push(outbox, to, PROTO_KIND_LOAD, 0, &load);
}

static void
finish(fake_scheduler_t *self, actor_outbox_t *outbox, work_t *work, uint32_t reason,
       uint32_t generated)
{
    proto_body_t body = {
        .finished =
            {
                .reason = reason,
                .prompt_tokens = work->prompt_length,
                .cached_tokens = work->prompt_length / 2,
                .generated_tokens = generated,
                .code = proto_text(""),
                .detail = proto_text(""),
                .queue_ns = 1000000,
            },
    };
    actor_outbox_push(outbox, (actor_peer_t){self->gateway}, PROTO_KIND_FINISHED, work->request,
                      &body);
    work->request = 0;
}

static void
take_submit(fake_scheduler_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    const proto_submit_t *submit = &input->body->submit;
    proto_sampling_t sampling;
    ck_assert_int_eq(proto_sampling_decode(submit->sampling, &sampling, NULL), STATUS_OK);
    (void)pthread_mutex_lock(&self->lock);
    if (self->seen.submit_count < 32) {
        self->seen.seeds[self->seen.submit_count] = sampling.seed;
    }
    self->seen.submit_count++;
    self->seen.open_count++;
    self->seen.last_prompt_length = submit->prompt_length;
    self->seen.last_generation_max = submit->generation_max;
    self->seen.last_priority = submit->priority;
    self->seen.last_page_count = (uint32_t)(submit->page_hashes.size_bytes / 32);
    if (self->seen.last_page_count > 0) {
        memcpy(self->seen.last_page, submit->page_hashes.data, sizeof self->seen.last_page);
    }
    self->seen.last_sampling = sampling;
    (void)pthread_mutex_unlock(&self->lock);
    if (self->script.refuse_status != 0) {
        proto_body_t body = {
            .finished =
                {
                    .reason = PROTO_FINISH_REFUSED,
                    .status = self->script.refuse_status,
                    .code = proto_text(self->script.refuse_code),
                    .detail = proto_text("refused by the script"),
                    .retry_after_ms = 2000,
                },
        };
        actor_outbox_push(outbox, (actor_peer_t){self->gateway}, PROTO_KIND_FINISHED,
                          input->header->request, &body);
        return;
    }
    for (int at = 0; at < REQUESTS_MAX; at++) {
        if (self->work[at].request == 0) {
            self->work[at] = (work_t){
                .request = input->header->request,
                .generation_max = submit->generation_max,
                .prompt_length = submit->prompt_length,
                .width = sampling.logprobs,
            };
            self->next_step_ns = input->now_ns;
            return;
        }
    }
    ck_abort_msg("the fake scheduler is full");
}

static void
take_finish(fake_scheduler_t *self, const actor_input_t *input, actor_outbox_t *outbox)
{
    (void)pthread_mutex_lock(&self->lock);
    self->seen.finish_count++;
    self->seen.last_finish = input->body->finish;
    self->seen.last_finish_ns = test_now_ns();
    (void)pthread_mutex_unlock(&self->lock);
    for (int at = 0; at < REQUESTS_MAX; at++) {
        if (self->work[at].request == input->header->request) {
            finish(self, outbox, &self->work[at], input->body->finish.reason,
                   input->body->finish.token_index);
        }
    }
}

static void
give_tokens(fake_scheduler_t *self, actor_outbox_t *outbox, work_t *work)
{
    uint32_t limit = work->generation_max;
    if (!self->script.endless && self->script.token_count < limit) {
        limit = self->script.token_count;
    }
    uint32_t hold = self->script.hold_at < limit ? self->script.hold_at : limit;
    uint32_t count = self->script.per_step == 0 ? 1 : self->script.per_step;
    count = count < hold - work->sent ? count : hold - work->sent;
    int32_t tokens[256];
    int32_t ids[256 * WIDTH_MAX];
    float values[256 * WIDTH_MAX];
    ck_assert_uint_le(count, 255);
    ck_assert_uint_le(work->width, WIDTH_MAX);
    for (uint32_t at = 0; at < count; at++) {
        tokens[at] = self->script.tokens[(work->sent + at) % self->script.token_count];
        for (uint32_t top = 0; top < work->width; top++) {
            ids[at * work->width + top] = top == 0 ? tokens[at] : (int32_t)('a' + top);
            values[at * work->width + top] = -0.5f * (float)(top + 1);
        }
    }
    uint32_t index = work->sent;
    work->sent += count;
    bool lost = self->script.skip_at >= index && self->script.skip_at < work->sent;
    if (count > 0 && !lost) {
        uint8_t counts[1] = {(uint8_t)count};
        uint8_t widths[1] = {(uint8_t)work->width};
        proto_body_t body = {
            .tokens =
                {
                    .step = ++self->step,
                    .requests = {&work->request, 1},
                    .token_indices = {&index, 1},
                    .token_counts = {counts, 1},
                    .tokens = {tokens, count},
                    .logprob_widths = {widths, 1},
                    .logprob_ids = {ids, count * work->width},
                    .logprob_values = {values, count * work->width},
                },
        };
        actor_outbox_push(outbox, (actor_peer_t){self->gateway}, PROTO_KIND_TOKENS, 0, &body);
    }
    if (work->sent >= limit && hold == limit) {
        finish(self, outbox, work,
               limit == work->generation_max ? PROTO_FINISH_LENGTH : PROTO_FINISH_STOP, limit);
    }
}

static void
step(void *core, const actor_input_t *input, actor_outbox_t *outbox)
{
    fake_scheduler_t *self = core;
    switch ((int)input->header->kind) {
    case PROTO_KIND_PEER_UP:
        self->gateway = input->body->peer_up.peer;
        send_info(self, outbox);
        break;
    case PROTO_KIND_PEER_DOWN:
        self->gateway = ACTOR_PEER_NONE;
        memset(self->work, 0, sizeof self->work);
        break;
    case PROTO_KIND_SUBMIT:
        take_submit(self, input, outbox);
        break;
    case PROTO_KIND_FINISH:
        take_finish(self, input, outbox);
        break;
    case PROTO_KIND_TIMER:
        for (int at = 0; at < REQUESTS_MAX; at++) {
            if (self->work[at].request != 0) {
                give_tokens(self, outbox, &self->work[at]);
            }
        }
        self->next_step_ns = input->now_ns + self->script.step_ns;
        break;
    default:
        break;
    }
}

static uint64_t
deadline_ns(const void *core)
{
    const fake_scheduler_t *self = core;
    for (int at = 0; at < REQUESTS_MAX; at++) {
        const work_t *work = &self->work[at];
        if (work->request != 0 && work->sent < self->script.hold_at) {
            return self->next_step_ns;
        }
    }
    return UINT64_MAX;
}

static uint64_t
digest(const void *core)
{
    (void)core;
    return 0;
}

static const actor_core_ops_t ops = {
    .name = "fake-scheduler",
    .role = PROTO_ROLE_SCHEDULER,
    .outbox_size_bytes = (size_t)REQUESTS_MAX * 256 * WIDTH_MAX * 8,
    .outbox_count_max = 3 * REQUESTS_MAX,
    .step = step,
    .deadline_ns = deadline_ns,
    .digest = digest,
};

static void
run(fake_scheduler_t *self, const char *endpoint)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    actor_link_options_t link = {
        .peer_role = PROTO_ROLE_GATEWAY,
        .endpoint = endpoint,
        .bind = true,
    };
    actor_shell_options_t options = {
        .name = "fake-scheduler",
        .epoch = test_now_ns(),
        .ops = &ops,
        .core = self,
        .links = &link,
        .link_count = 1,
        .ring_fd = -1,
    };
    if (actor_shell_new(&options, &self->shell) == STATUS_OK) {
        (void)!actor_shell_run(self->shell);
    }
    _exit(1); /* it ends by a signal only */
}

fake_scheduler_t *
fake_scheduler_start(const char *endpoint, const fake_script_t *script)
{
    fake_scheduler_t *self =
        mmap(NULL, sizeof *self, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(self, MAP_FAILED);
    self->script = *script;
    self->gateway = ACTOR_PEER_NONE;
    pthread_mutexattr_t attributes;
    (void)pthread_mutexattr_init(&attributes);
    (void)pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    (void)pthread_mutex_init(&self->lock, &attributes);
    (void)pthread_mutexattr_destroy(&attributes);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        run(self, endpoint);
    }
    self->pid = pid;
    return self;
}

void
fake_scheduler_kill(fake_scheduler_t *self)
{
    ck_assert_int_eq(kill(self->pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(self->pid, NULL, 0), self->pid);
    self->pid = 0;
}

void
fake_scheduler_stop(fake_scheduler_t **self_p)
{
    fake_scheduler_t *self = *self_p;
    if (self == NULL) {
        return;
    }
    if (self->pid > 0) {
        fake_scheduler_kill(self);
    }
    (void)munmap(self, sizeof *self);
    *self_p = NULL;
}

fake_seen_t
fake_scheduler_seen(fake_scheduler_t *self)
{
    (void)pthread_mutex_lock(&self->lock);
    fake_seen_t seen = self->seen;
    (void)pthread_mutex_unlock(&self->lock);
    return seen;
}

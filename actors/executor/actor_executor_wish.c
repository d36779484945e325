#include "actor_executor_wish.h"

#include <string.h>

#include "actor_fault.h"
#include "actor_log.h"

static bool
is_text(proto_text_t text, const char *value)
{
    return strlen(value) == text.size_bytes && memcmp(text.data, value, text.size_bytes) == 0;
}

actor_executor_wish_t
actor_executor_wish_of(const proto_command_t *command)
{
    if (is_text(command->verb, "executor-check")) {
        return ACTOR_EXECUTOR_WISH_CHECK;
    }
    if (is_text(command->verb, "executor-show")) {
        return ACTOR_EXECUTOR_WISH_SHOW;
    }
    if (is_text(command->verb, "executor-graphs") && is_text(command->argument, "on")) {
        return ACTOR_EXECUTOR_WISH_GRAPHS_ON;
    }
    if (is_text(command->verb, "executor-graphs") && is_text(command->argument, "off")) {
        return ACTOR_EXECUTOR_WISH_GRAPHS_OFF;
    }
    return is_text(command->verb, "executor-cancel") ? ACTOR_EXECUTOR_WISH_CANCEL
                                                     : ACTOR_EXECUTOR_WISH_NONE;
}

static void
answer_with_graphs(run_executor_t *run, uint64_t number, actor_shell_t *shell)
{
    char text[256];
    run_executor_graphs_text(run, text, sizeof text);
    actor_log(ACTOR_LOG_INFO, "device.graphs", 0, NULL, "%s", text);
    actor_shell_answer(shell, number, STATUS_OK, text);
}

static void
begin_check(run_executor_t *run, uint64_t number, actor_shell_t *shell,
            actor_executor_check_t *check)
{
    if (check->number != 0) {
        actor_shell_answer(shell, number, STATUS_ERR_OVERLOADED,
                           "another check waits for its step; try again in a moment");
    } else if (run_executor_want_check(run, ACTOR_FAULT("executor.check_differs")) == STATUS_OK) {
        check->number = number;
    } else {
        actor_shell_answer(shell, number, STATUS_ERR_REFUSED,
                           "there is nothing to compare: this executor has no graphs, they are "
                           "off (`onepath executor graphs on`), or its ranks share the model");
    }
}

static void
switch_graphs(run_executor_t *run, bool on, actor_shell_t *shell, actor_executor_check_t *check)
{
    run_executor_set_graphs(run, on);
    if (!on && check->number != 0) {
        actor_shell_answer(shell, check->number, STATUS_ERR_REFUSED,
                           "the graphs were switched off before a step came that could be checked");
        actor_executor_wish_cancel(check->number, run, check);
    }
}

void
actor_executor_wish_begin(actor_executor_wish_t wish, uint64_t number, run_executor_t *run,
                          actor_shell_t *shell, actor_executor_check_t *check)
{
    if (run == NULL || wish == ACTOR_EXECUTOR_WISH_NONE) {
        actor_shell_answer(shell, number, STATUS_ERR_UNSUPPORTED,
                           run == NULL ? "this executor has the null device, which has no graphs"
                                       : "executor: no such command; there are executor-check, "
                                         "executor-graphs on|off, executor-show");
        return;
    }
    if (wish == ACTOR_EXECUTOR_WISH_CHECK) {
        begin_check(run, number, shell, check);
        return;
    }
    if (wish != ACTOR_EXECUTOR_WISH_SHOW) {
        switch_graphs(run, wish == ACTOR_EXECUTOR_WISH_GRAPHS_ON, shell, check);
    }
    answer_with_graphs(run, number, shell);
}

void
actor_executor_wish_look(run_executor_t *run, actor_shell_t *shell, actor_executor_check_t *check)
{
    proto_status_t verdict = STATUS_OK;
    const char *text = NULL;
    if (check->number == 0 || run_executor_take_check(run, &verdict, &text) != STATUS_OK) {
        return;
    }
    uint64_t number = check->number;
    check->number = 0;
    actor_log(verdict == STATUS_OK ? ACTOR_LOG_INFO : ACTOR_LOG_ERROR, "device.shadow_check", 0,
              ACTOR_LOG_FIELDS(actor_log_str("status", proto_status_name(verdict))), "%s", text);
    actor_shell_answer(shell, number, verdict, text);
}

void
actor_executor_wish_cancel(uint64_t number, run_executor_t *run, actor_executor_check_t *check)
{
    if (number != 0 && check->number == number) {
        check->number = 0;
        run_executor_drop_check(run);
    }
}

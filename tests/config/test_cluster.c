/* Cluster files: what is read, what is refused and in which words, and which of several values
 * wins. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config_cluster.h"
#include "config_value.h"

static config_cluster_t *cluster;

static void
setup(void)
{
    ck_assert_int_eq(config_cluster_new(&cluster), STATUS_OK);
}

static void
teardown(void)
{
    config_cluster_destroy(&cluster);
    ck_assert_ptr_null(cluster);
}

static proto_status_t
read_text(const char *text)
{
    return config_cluster_read_bytes(cluster, "f.yaml", text, strlen(text));
}

static const char two_nodes[] = "model: /m.gguf\n"
                                "gateway:\n"
                                "  port: 8080\n"
                                "limits: {max_num_seqs: 16}\n"
                                "graphs:\n"
                                "  capture_sizes: [1, 2, 16]\n"
                                "nodes:\n"
                                "  - name: p\n"
                                "    role: prefill\n"
                                "  - name: d\n"
                                "    role: decode\n"
                                "    limits:\n"
                                "      max_num_seqs: 64\n"
                                "    cache: {memory: 2G}\n";

START_TEST(values_of_a_node_come_from_its_entry_then_the_top_then_the_default)
{
    ck_assert_int_eq(read_text(two_nodes), STATUS_OK);
    ck_assert_int_eq(config_cluster_check(cluster), STATUS_OK);
    ck_assert_uint_eq(config_cluster_node_count(cluster), 2);
    ck_assert_uint_eq(config_cluster_find_node(cluster, "d"), 1);
    ck_assert_uint_eq(config_cluster_find_node(cluster, "x"), CONFIG_TOP);
    ck_assert_str_eq(config_cluster_text(cluster, 0, "role"), "prefill");
    ck_assert_uint_eq(config_cluster_number(cluster, 0, "limits.max_num_seqs"), 16);
    ck_assert_uint_eq(config_cluster_number(cluster, 1, "limits.max_num_seqs"), 64);
    ck_assert_uint_eq(config_cluster_number(cluster, CONFIG_TOP, "limits.max_num_seqs"), 16);
    ck_assert_uint_eq(config_cluster_number(cluster, 1, "cache.memory"), UINT64_C(2) << 30);
    ck_assert_ptr_null(config_cluster_text(cluster, 0, "cache.memory"));
    ck_assert_str_eq(config_cluster_text(cluster, 0, "graphs.capture_sizes"), "1,2,16");
    ck_assert_uint_eq(config_cluster_number(cluster, CONFIG_TOP, "gateway.port"), 8080);
    ck_assert_uint_eq(config_cluster_number(cluster, 0, "limits.queue_len"), 1024);
    ck_assert(config_cluster_flag(cluster, 0, "cache.prefix_cache"));
}
END_TEST

static const char *
lookup(const char *variable)
{
    if (strcmp(variable, "ONEPATH_MAX_NUM_SEQS") == 0) {
        return "8";
    }
    if (strcmp(variable, "ONEPATH_NO_PREFIX_CACHE") == 0) {
        return "1";
    }
    if (strcmp(variable, "ONEPATH_INSECURE_BIND") == 0) {
        return "true";
    }
    /* Kubernetes injects this for a service that is called onepath. */
    return strcmp(variable, "ONEPATH_PORT") == 0 ? "tcp://10.0.0.1:8000" : NULL;
}

static void
expect_origin(uint32_t node, const char *name, const char *text, const char *origin)
{
    char got[CONFIG_ORIGIN_SIZE_BYTES];
    config_value_t value = config_cluster_value(cluster, node, name);
    config_cluster_origin(cluster, &value, got);
    ck_assert_str_eq(value.text, text);
    ck_assert_str_eq(got, origin);
}

/* An operator must be able to say why a value is what it is. */
START_TEST(command_line_wins_over_environment_over_file_and_the_origin_is_kept)
{
    ck_assert_int_eq(config_cluster_set_pair(cluster, "logging.level=debug", "--set logging.level"),
                     STATUS_OK);
    ck_assert_int_eq(config_cluster_read_environment(cluster, lookup), STATUS_OK);
    ck_assert_int_eq(read_text(two_nodes), STATUS_OK);
    expect_origin(1, "limits.max_num_seqs", "8", "environment variable ONEPATH_MAX_NUM_SEQS");
    expect_origin(1, "cache.memory", "2G", "f.yaml:14:21");
    expect_origin(0, "cache.prefix_cache", "false", "environment variable ONEPATH_NO_PREFIX_CACHE");
    expect_origin(0, "gateway.port", "8080", "f.yaml:3:9");
    expect_origin(0, "model", "/m.gguf", "f.yaml:1:8");
    expect_origin(0, "logging.level", "debug", "--set logging.level");
    expect_origin(0, "device", "auto", "default");
    ck_assert(config_cluster_flag(cluster, 0, "security.insecure_bind"));
    ck_assert_int_eq(config_cluster_set(cluster, "limits.max_num_seqs", "9", "--max-num-seqs"),
                     STATUS_OK);
    expect_origin(1, "limits.max_num_seqs", "9", "--max-num-seqs");
}
END_TEST

/* Each refusal names the place and the remedy. */
static const struct {
    const char *text;
    const char *problem;
} refused[] = {
    {"modle: /m\n", "f.yaml:1:1: unknown key 'modle'; did you mean model?"},
    {"model: /m\ngateway:\n  prot: 1\n",
     "f.yaml:3:3: unknown key 'gateway.prot'; did you mean gateway.port?"},
    {"model: /m\nport: 1\n", "f.yaml:2:1: unknown key 'port'; did you mean gateway.port?"},
    {"model: /m\nnode:\n - name: a\n", "f.yaml:2:1: unknown key 'node'; did you mean nodes?"},
    {"model: /m\nlimit: {}\n", "f.yaml:2:1: unknown key 'limit'; did you mean limits?"},
    {"model: /m\nzzzzzzzz: 1\n", "f.yaml:2:1: unknown key 'zzzzzzzz'"},
    {"model: /m\ngateway.port: 1\n", "f.yaml:2:1: unknown key 'gateway.port'"},
    {"a: &x 1\n", "f.yaml:1:4: anchors (&name) are not read; write the value out"},
    {"gateway: &x {port: 1}\n", "f.yaml:1:10: anchors (&name) are not read"},
    {"a: *x\n", "f.yaml:1:4: aliases (*name) are not read; write the value out"},
    {"model: !!str /m\n", "f.yaml:1:8: tags (!name) are not read; leave it out"},
    {"gateway: !!map {}\n", "f.yaml:1:10: tags (!name) are not read"},
    {"gateway:\n  <<: {port: 1}\n", "f.yaml:2:3: merge keys are not read"},
    {"%YAML 1.1\n---\nmodel: /m\n", "directives (%YAML, %TAG) are not read"},
    {"model: /m\n---\nmodel: /n\n", "f.yaml:2:1: a second document (---) is not read"},
    {"model: |\n  /m\n", "f.yaml:1:8: a block of text"},
    {"model: /m\n  n\n", "f.yaml:1:8: this value goes over more than one line; write it on one"},
    {"model: \"/m\\n\"\n", "f.yaml:1:8: a control character or a line break"},
    {"model: /m\nmodel: /n\n", "f.yaml:2:1: 'model' stands here twice, first on line 1"},
    {"cache: {memory: 1G}\ncache: {dtype: f16}\n", "f.yaml:2:1: 'cache' stands here twice"},
    {"nodes:\n - {name: a, name: b}\n", "f.yaml:2:14: 'name' stands here twice"},
    {"gateway: {port: 65536}\n", "f.yaml:1:17: gateway.port is '65536'; it takes a number from 0 "
                                 "to 65535"},
    {"gateway: {port: -1}\n", "gateway.port is '-1'; it takes a number"},
    {"gateway: {port: 0x10}\n", "gateway.port is '0x10'; it takes a number"},
    {"gateway: {port: 010}\n", "gateway.port is '010'; it takes a number"},
    {"gateway: {port: 1e3}\n", "gateway.port is '1e3'; it takes a number"},
    {"gateway: {port: 18446744073709551617}\n", "it takes a number from 0 to 65535"},
    {"gateway: {port: \"80\"}\n", "gateway.port is '80'; write it without quotes"},
    {"gateway: {port: [80]}\n", "gateway.port takes one value"},
    {"gateway: {port: }\n", "gateway.port is ''; write a value, or leave the key out"},
    {"gateway: 3\n", "f.yaml:1:10: gateway takes keys of its own"},
    {"gateway: {strict_params: yes}\n", "gateway.strict_params is 'yes'; write true or false"},
    {"gateway: {strict_params: 1}\n", "gateway.strict_params is '1'; it takes true or false"},
    {"model: no\n", "model is 'no'; YAML takes this for true or false; put it in quotes"},
    {"model: ~\n", "model is '~'; write a value"},
    {"cache: {memory: 1T}\n", "cache.memory is '1T'; it takes a size of at least 1M"},
    {"gateway: {resume_memory: 1K}\n", "it takes a size from 64K to 4G, such as 64M"},
    {"kernels: avx\n", "kernels is 'avx'; it takes one of: auto avx512 avx2 portable; did you mean "
                       "avx2?"},
    {"graphs: {capture_sizes: 4}\n", "graphs.capture_sizes takes a list of numbers"},
    {"graphs: {capture_sizes: [4, 2]}\n", "it takes ascending numbers from 1 to 4096"},
    {"graphs: {capture_sizes: [a]}\n", "graphs.capture_sizes is 'a'; it takes ascending"},
    {"graphs: {capture_sizes: [[1]]}\n", "takes a list of numbers"},
    {"scheduler: {endpoint: /run/s}\n", "it takes ipc:///PATH (at most 107 bytes) or tcp://"},
    {"scheduler: {endpoint: \"tcp://h:0\"}\n", "it takes ipc:///PATH"},
    {"nodes: 3\n", "f.yaml:1:8: nodes takes a list"},
    {"nodes: [3]\n", "f.yaml:1:9: a node takes keys"},
    {"nodes:\n - name: a\n   gateway: {port: 1}\n", "f.yaml:3:14: gateway.port is not set here; it "
                                                    "stands at the top of the file"},
    {"role: fused\n", "f.yaml:1:1: role is not set here; it stands in an entry of nodes"},
    {"", "f.yaml:1:1: the file is empty"},
    {"- model\n", "f.yaml:1:1: a cluster file is a list of keys"},
    {"{a: 1}: 2\n", "a key is one word"},
    {"model: \"/m\n", "this is not YAML"},
    {"\tmodel: /m\n", "this is not YAML"},
    {"model: \xff\xfe\n", "this is not YAML"},
    {"version: 2\nmodel: /m\n", "version is '2'; it takes a number from 1 to 1"},
    /* What only several values together show. */
    {"nodes:\n - name: a\n", "f.yaml:2:4: node 'a' has no model; write 'model: PATH'"},
    {"model: /m\nnodes:\n - role: fused\n", "f.yaml:3:4: node 'without a name' needs one"},
    {"model: /m\nnodes:\n - name: A_\n", "f.yaml:3:10: name is 'A_'; it takes a-z, 0-9 and -"},
    {"model: /m\nnodes:\n - name: gateway\n", "that is the name of the cluster's gateway"},
    {"model: /m\nnodes:\n - name: a\n - name: a\n",
     "f.yaml:4:10: name is 'a'; a node has that name "
     "already, on line 3"},
    {"model: /m\nnodes:\n - {name: a, role: prefill}\n", "no node has role: decode"},
    {"model: /m\nnodes:\n - {name: a, role: decode}\n", "no node has role: prefill"},
    {"model: /m\ndevice: gpu\n", "device is 'gpu'; it takes auto, cpu, cuda or cuda:N"},
    {"model: /m\ndrafter: {kind: ngram, width: 1}\n", "f.yaml:2:31: drafter.width is '1'; with a "
                                                      "drafter it takes 2 or more"},
    {"model: /m\ngraphs: {capture_sizes: [64]}\n", "its last number is above limits.max_num_seqs "
                                                   "(32)"},
    {"model: /m\ngraphs: {capture_sizes: [16], max_capture_size: 8}\n",
     "its last number is above graphs.max_capture_size (8)"},
    {"model: /m\ngraphs: {prefill_max_tokens: 1024}\n", "a step has at most"},
    {"model: /m\ngraphs: {prefill_max_tokens: 64, prefill: false}\n", "graphs.prefill is false"},
    {"model: /m\ngateway: {host: 0.0.0.0}\n",
     "f.yaml:2:17: gateway.host is '0.0.0.0'; other machines "
     "reach it: set security.api_key_file"},
    {"model: /m\nrecording: {strict: true}\n", "it needs a folder as recording.mode"},
    {"model: /m\nnodes:\n - {name: a, host: h}\n", "node 'a' is on h, so it needs "
                                                   "endpoints.scheduler: tcp://HOST:PORT"},
    {"model: /m\nnodes:\n - {name: a, role: prefill, host: h}\n - {name: b, role: decode}\n",
     "node 'a' is on h, so it needs endpoints.transfer: tcp://HOST:PORT"},
    {"model: /m\nnodes:\n - {name: a, endpoints: {role: \"ipc:///r\"}}\n",
     "a fused node has no such actor"},
    {"model: /m\nnodes:\n - {name: a, endpoints: {scheduler: \"tcp://h:1\"}}\n",
     "links to another host are encrypted: set security.curve_keys"},
    {"model: /m\nnodes:\n - {name: a, endpoints: {scheduler: \"tcp://*:1\"}}\n",
     "others connect there, so it takes a name or an address"},
    {"model: /m\nnodes:\n - {name: a, host: h, endpoints: {scheduler: \"ipc:///s\"}}\n",
     "the node is on another host; it takes tcp://"},
    {"model: /m\nnodes:\n - {name: a, endpoints: {scheduler: \"ipc:///s\"}}\n"
     " - {name: b, endpoints: {scheduler: \"ipc:///s\"}}\n",
     "f.yaml:4:37: endpoints.scheduler is 'ipc:///s'; endpoints.scheduler of node 'a' is the same"},
};

static bool
has_problem(const char *text)
{
    for (uint32_t i = 0; i < config_cluster_problem_count(cluster); i++) {
        if (strstr(config_cluster_problem(cluster, i), text) != NULL) {
            return true;
        }
    }
    return false;
}

START_TEST(what_is_wrong_is_refused_with_its_place_and_the_remedy)
{
    proto_status_t status = read_text(refused[_i].text);
    if (status == STATUS_OK) {
        status = config_cluster_check(cluster);
    }
    ck_assert_msg(status == STATUS_ERR_CONFIG, "taken: %s", refused[_i].text);
    ck_assert_msg(has_problem(refused[_i].problem), "'%s' gave '%s', not '%s'", refused[_i].text,
                  config_cluster_problem(cluster, 0), refused[_i].problem);
}
END_TEST

/* One run shows all mistakes: nobody should have to mend a file line by line. */
START_TEST(every_problem_of_a_file_is_told_at_once)
{
    ck_assert_int_eq(read_text("modle: /m\ngateway: {port: x}\ncache: {dtpye: f16}\n"),
                     STATUS_ERR_CONFIG);
    ck_assert_uint_eq(config_cluster_problem_count(cluster), 3);
}
END_TEST

START_TEST(problems_are_bounded)
{
    char text[64 * 1024] = "";
    size_t at = 0;
    for (unsigned i = 0; i < 100; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "k%u: 1\n", i);
    }
    ck_assert_int_eq(read_text(text), STATUS_ERR_CONFIG);
    ck_assert_uint_eq(config_cluster_problem_count(cluster), CONFIG_PROBLEMS_MAX);
}
END_TEST

START_TEST(a_file_without_nodes_is_one_fused_node)
{
    ck_assert_int_eq(read_text("model: /m\nsecurity:\n"), STATUS_OK);
    ck_assert_int_eq(config_cluster_check(cluster), STATUS_OK);
    ck_assert_uint_eq(config_cluster_node_count(cluster), 1);
    ck_assert_str_eq(config_cluster_text(cluster, 0, "name"), "node");
    ck_assert_str_eq(config_cluster_text(cluster, 0, "role"), "fused");
    ck_assert_uint_eq(config_cluster_find_node(cluster, "node"), 0);
}
END_TEST

START_TEST(more_nodes_than_the_limit_are_refused)
{
    char text[64 * 1024] = "model: /m\nnodes:\n";
    size_t at = strlen(text);
    for (unsigned i = 0; i <= CONFIG_NODES_MAX; i++) {
        at += (size_t)snprintf(text + at, sizeof text - at, "  - {name: n%u}\n", i);
    }
    ck_assert_int_eq(read_text(text), STATUS_ERR_CONFIG);
    ck_assert(has_problem("f.yaml:67:5: a cluster has at most 64 nodes"));
    ck_assert_uint_eq(config_cluster_node_count(cluster), CONFIG_NODES_MAX);
}
END_TEST

START_TEST(environment_and_command_line_are_refused_by_their_names)
{
    ck_assert_int_eq(config_cluster_set_pair(cluster, "gateway.prot=1", "--set"),
                     STATUS_ERR_CONFIG);
    ck_assert(has_problem("--set: 'gateway.prot' is no key that can be set here; did you mean "
                          "gateway.port?"));
    ck_assert_int_eq(config_cluster_set_pair(cluster, "gateway.port=x", "--set"),
                     STATUS_ERR_CONFIG);
    ck_assert(has_problem("--set: gateway.port is 'x'; it takes a number from 0 to 65535"));
    ck_assert_int_eq(config_cluster_set_pair(cluster, "name=a", "--set"), STATUS_ERR_CONFIG);
    ck_assert(has_problem("'name' is no key that can be set here"));
    ck_assert_int_eq(config_cluster_set_pair(cluster, "model", "--set"), STATUS_ERR_CONFIG);
    ck_assert(has_problem("--set is 'model'; it takes KEY=VALUE"));
}
END_TEST

static const char *
bad_lookup(const char *variable)
{
    if (strcmp(variable, "ONEPATH_PORT") == 0) {
        return "70000";
    }
    return strcmp(variable, "ONEPATH_STRICT_PARAMS") == 0 ? "maybe" : NULL;
}

START_TEST(a_wrong_variable_is_named_with_value_and_remedy)
{
    ck_assert_int_eq(config_cluster_read_environment(cluster, bad_lookup), STATUS_ERR_CONFIG);
    ck_assert(has_problem("environment variable ONEPATH_PORT is '70000'; it takes a number from 0 "
                          "to 65535"));
    ck_assert(has_problem("environment variable ONEPATH_STRICT_PARAMS is 'maybe'; it takes 1 or "
                          "0"));
}
END_TEST

typedef struct {
    char text[64 * 1024];
    size_t len;
} page_t;

static void
keep(void *context, const char *line)
{
    page_t *page = context;
    page->len +=
        (size_t)snprintf(page->text + page->len, sizeof page->text - page->len, "%s\n", line);
    ck_assert_uint_lt(page->len, sizeof page->text);
}

/* What is shown is a file again, and that file says the same. */
START_TEST(what_is_shown_reads_back_as_the_same)
{
    static page_t first, second;
    config_show_t show = {.all = _i != 0, .with_origin = false, .node = CONFIG_TOP};
    ck_assert_int_eq(read_text("model: \"/a b/#m: \\\"x\\\".gguf\"\ncluster: {name: \"on\"}\n"
                               "drafter: {kind: ngram, width: 4}\n"
                               "graphs: {capture_sizes: [1, 2]}\nsecurity: {curve_keys: /k}\n"
                               "nodes:\n - name: a\n   host: h\n   endpoints:\n"
                               "     scheduler: tcp://h:7000\n   cache: {memory: 3G}\n"
                               " - name: b\n"),
                     STATUS_OK);
    ck_assert_int_eq(config_cluster_check(cluster), STATUS_OK);
    config_cluster_show(cluster, &show, keep, &first);
    config_cluster_t *again = NULL;
    ck_assert_int_eq(config_cluster_new(&again), STATUS_OK);
    ck_assert_int_eq(config_cluster_read_bytes(again, "g", first.text, first.len), STATUS_OK);
    ck_assert_int_eq(config_cluster_check(again), STATUS_OK);
    for (uint32_t i = 0; i < config_key_count; i++) {
        for (uint32_t node = 0; node < 2; node++) {
            const char *was = config_cluster_text(cluster, node, config_keys[i].name);
            const char *is = config_cluster_text(again, node, config_keys[i].name);
            ck_assert_msg(was == is || strcmp(was != NULL ? was : "", is != NULL ? is : "") == 0,
                          "%s of %u was %s, is %s", config_keys[i].name, node, was, is);
        }
    }
    config_cluster_show(again, &show, keep, &second);
    ck_assert_str_eq(first.text, second.text);
    config_cluster_destroy(&again);
}
END_TEST

START_TEST(a_file_that_is_none_is_refused)
{
    ck_assert_int_eq(config_cluster_read_file(cluster, "/nowhere/x.yaml"), STATUS_ERR_CONFIG);
    ck_assert(has_problem("/nowhere/x.yaml cannot be opened: No such file"));
    ck_assert_int_eq(config_cluster_read_file(cluster, "/tmp"), STATUS_ERR_CONFIG);
    ck_assert(has_problem("/tmp is no file"));
}
END_TEST

START_TEST(sizes_are_printed_as_they_are_read)
{
    static const uint64_t sizes[] = {0,         1, 1023, 1024, 1536, 1 << 20, UINT64_C(5) << 30,
                                     UINT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char text[24];
        uint64_t back = 0;
        config_size_print(sizes[i], text);
        ck_assert_int_eq(config_size_parse(text, &back), STATUS_OK);
        ck_assert_uint_eq(back, sizes[i]);
    }
    uint64_t back = 0;
    ck_assert_int_eq(config_size_parse("17179869184G", &back), STATUS_ERR_INVALID);
    ck_assert_int_eq(config_size_parse("4 G", &back), STATUS_ERR_INVALID);
    ck_assert_int_eq(config_size_parse("", &back), STATUS_ERR_INVALID);
}
END_TEST

/* A key that nobody can find by its own name would be documentation only. */
START_TEST(every_key_is_found_and_has_a_variable_of_its_own)
{
    for (uint32_t i = 0; i < config_key_count; i++) {
        const config_key_t *key = &config_keys[i];
        char mine[CONFIG_VARIABLE_SIZE_BYTES];
        ck_assert_ptr_eq(config_schema_find(key->name, strlen(key->name)), key);
        ck_assert_msg(key->initial != NULL || key->unset != NULL, "%s", key->name);
        config_schema_variable(key, mine);
        for (uint32_t k = 0; k < i && config_schema_is_settable(key); k++) {
            char other[CONFIG_VARIABLE_SIZE_BYTES];
            config_schema_variable(&config_keys[k], other);
            ck_assert(!config_schema_is_settable(&config_keys[k]) || strcmp(mine, other) != 0);
        }
    }
}
END_TEST

int
main(void)
{
    Suite *suite = suite_create("config.cluster");
    TCase *tests = tcase_create("cluster");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, values_of_a_node_come_from_its_entry_then_the_top_then_the_default);
    tcase_add_test(tests, command_line_wins_over_environment_over_file_and_the_origin_is_kept);
    tcase_add_loop_test(tests, what_is_wrong_is_refused_with_its_place_and_the_remedy, 0,
                        (int)(sizeof refused / sizeof refused[0]));
    tcase_add_test(tests, every_problem_of_a_file_is_told_at_once);
    tcase_add_test(tests, problems_are_bounded);
    tcase_add_test(tests, a_file_without_nodes_is_one_fused_node);
    tcase_add_test(tests, more_nodes_than_the_limit_are_refused);
    tcase_add_test(tests, environment_and_command_line_are_refused_by_their_names);
    tcase_add_test(tests, a_wrong_variable_is_named_with_value_and_remedy);
    tcase_add_loop_test(tests, what_is_shown_reads_back_as_the_same, 0, 2);
    tcase_add_test(tests, a_file_that_is_none_is_refused);
    tcase_add_test(tests, sizes_are_printed_as_they_are_read);
    tcase_add_test(tests, every_key_is_found_and_has_a_variable_of_its_own);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

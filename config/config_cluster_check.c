/* What one value alone cannot show. */
#include <stdio.h>
#include <string.h>

#include "config_private.h"
#include "proto_require.h"

static const char *const endpoints[] = {"endpoints.scheduler", "endpoints.role",
                                        "endpoints.transfer"};
enum { ENDPOINT_COUNT = sizeof endpoints / sizeof endpoints[0] };

static config_value_t
value(const config_cluster_t *self, uint32_t node, const char *name)
{
    return config_cluster_value(self, node, name);
}

static void
complain(config_cluster_t *self, uint32_t node, const char *name, const char *what)
{
    config_value_t at = value(self, node, name);
    config_cluster_complain(self, &at, what);
}

static bool
is_name(const char *name)
{
    size_t name_len = strlen(name);
    return name_len > 0 && name_len <= CONFIG_NAME_LEN_MAX && name[0] != '-' &&
           name[name_len - 1] != '-' &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == name_len;
}

/* Where a complaint about a node as a whole stands: its entry. */
static void
complain_of_node(config_cluster_t *self, uint32_t node, const char *what)
{
    const char *name = config_cluster_text(self, node, "name");
    bool is_written = node < self->node_count;
    config_problem_at(self, is_written ? self->nodes[node]->line : 0,
                      is_written ? self->nodes[node]->column : 0, "node '%s' %s",
                      name != NULL ? name : "without a name", what);
}

static void
check_names(config_cluster_t *self)
{
    for (uint32_t i = 0; i < self->node_count; i++) {
        const char *name = config_cluster_text(self, i, "name");
        if (name == NULL) {
            complain_of_node(self, i, "needs one; write 'name: NAME'");
            continue;
        }
        if (!is_name(name)) {
            complain(self, i, "name", "it takes a-z, 0-9 and - between them, at most 63");
        } else if (strcmp(name, "gateway") == 0) {
            complain(self, i, "name", "that is the name of the cluster's gateway; take another");
        }
        for (uint32_t k = 0; k < i; k++) {
            const char *other = config_cluster_text(self, k, "name");
            char what[CONFIG_MESSAGE_SIZE_BYTES];
            if (other != NULL && strcmp(other, name) == 0) {
                (void)snprintf(what, sizeof what,
                               "a node has that name already, on line %u; names are unique",
                               self->nodes[k]->line);
                complain(self, i, "name", what);
                break;
            }
        }
    }
}

static void
check_roles(config_cluster_t *self)
{
    static const char *const roles[] = {"fused", "prefill", "decode"};
    uint32_t count[3] = {0, 0, 0};
    for (uint32_t i = 0; i < config_cluster_node_count(self); i++) {
        for (uint32_t role = 0; role < 3; role++) {
            count[role] += strcmp(config_cluster_text(self, i, "role"), roles[role]) == 0 ? 1 : 0;
        }
    }
    for (uint32_t i = 0; i < config_cluster_node_count(self); i++) {
        const char *role = config_cluster_text(self, i, "role");
        if (strcmp(role, "prefill") == 0 && count[2] == 0) {
            complain(self, i, "role", "no node has role: decode, so nobody takes what it computes");
            return;
        }
        if (strcmp(role, "decode") == 0 && count[1] == 0) {
            complain(self, i, "role",
                     "no node has role: prefill, so nobody computes prompts; write fused");
            return;
        }
    }
}

static bool
is_ordinal(const char *device)
{
    return strncmp(device, "cuda:", 5) == 0 && device[5] != '\0' && strlen(device + 5) < 4 &&
           device[5 + strspn(device + 5, "0123456789")] == '\0';
}

static void
check_model(config_cluster_t *self, uint32_t node)
{
    config_value_t model = value(self, node, "model");
    if (model.text == NULL && self->path != NULL &&
        !config_cluster_flag(self, node, "null_device")) {
        complain_of_node(self, node, "has no model; write 'model: PATH' in it, or at the top");
    }
    const char *device = config_cluster_text(self, node, "device");
    if (strcmp(device, "auto") != 0 && strcmp(device, "cpu") != 0 && strcmp(device, "cuda") != 0 &&
        !is_ordinal(device)) {
        complain(self, node, "device", "it takes auto, cpu, cuda or cuda:N");
    }
    config_value_t width = value(self, node, "drafter.width");
    if (strcmp(config_cluster_text(self, node, "drafter.kind"), "off") != 0 && width.number == 1) {
        config_cluster_complain(self, &width, "with a drafter it takes 2 or more");
    }
}

static void
check_limits(config_cluster_t *self, uint32_t node)
{
    char what[CONFIG_MESSAGE_SIZE_BYTES];
    uint64_t slots = config_cluster_number(self, node, "limits.max_num_seqs");
    uint64_t tokens = config_cluster_number(self, node, "limits.max_num_batched_tokens");
    uint64_t largest = config_cluster_number(self, node, "graphs.max_capture_size");
    config_value_t sizes = value(self, node, "graphs.capture_sizes");
    if (sizes.text != NULL) {
        const char *comma = strrchr(sizes.text, ',');
        uint64_t last = 0;
        proto_status_t status = config_size_parse(comma != NULL ? comma + 1 : sizes.text, &last);
        require(status == STATUS_OK);
        if (last > slots || (largest != 0 && last > largest)) {
            bool of_slots = last > slots;
            (void)snprintf(what, sizeof what, "its last number is above %s (%llu)",
                           of_slots ? "limits.max_num_seqs" : "graphs.max_capture_size",
                           (unsigned long long)(of_slots ? slots : largest));
            complain(self, node, "graphs.capture_sizes", what);
        }
    }
    config_value_t prefill = value(self, node, "graphs.prefill_max_tokens");
    if (prefill.number > tokens) {
        (void)snprintf(what, sizeof what,
                       "a step has at most limits.max_num_batched_tokens (%llu) tokens",
                       (unsigned long long)tokens);
        complain(self, node, "graphs.prefill_max_tokens", what);
    }
    if (prefill.text != NULL && !config_cluster_flag(self, node, "graphs.prefill")) {
        complain(self, node, "graphs.prefill_max_tokens",
                 "graphs.prefill is false, so no step with prompts uses a graph");
    }
    const char *mode = config_cluster_text(self, node, "recording.mode");
    if (config_cluster_flag(self, node, "recording.strict") &&
        (strcmp(mode, "ring") == 0 || strcmp(mode, "off") == 0)) {
        complain(self, node, "recording.strict", "it needs a folder as recording.mode");
    }
}

/* Who else listens there: the ports of one host are one space, and so are the paths of ipc. */
static void
check_clash(config_cluster_t *self, uint32_t node, uint32_t which)
{
    config_value_t mine = value(self, node, endpoints[which]);
    for (uint32_t i = 0; i <= node; i++) {
        for (uint32_t k = 0; k < (i < node ? (uint32_t)ENDPOINT_COUNT : which); k++) {
            config_value_t other = value(self, i, endpoints[k]);
            if (other.text != NULL && strcmp(other.text, mine.text) == 0) {
                char what[CONFIG_MESSAGE_SIZE_BYTES];
                (void)snprintf(what, sizeof what, "%s of node '%s' is the same; take another",
                               endpoints[k], config_cluster_text(self, i, "name"));
                config_cluster_complain(self, &mine, what);
                return;
            }
        }
    }
}

static void
check_endpoints(config_cluster_t *self, uint32_t node)
{
    const char *host = config_cluster_text(self, node, "host");
    bool is_remote = !config_host_is_loopback(host);
    bool may_leave = config_cluster_flag(self, node, "security.insecure_bind") ||
                     config_cluster_text(self, node, "security.curve_keys") != NULL;
    bool is_pair = strcmp(config_cluster_text(self, node, "role"), "fused") != 0;
    for (uint32_t i = 0; i < ENDPOINT_COUNT; i++) {
        config_value_t at = value(self, node, endpoints[i]);
        char name[256];
        uint32_t port = 0;
        bool is_needed = is_pair != (i == 0); /* gateways speak to the role, if there is one */
        if (at.text == NULL) {
            if (is_remote && is_needed) {
                char what[CONFIG_MESSAGE_SIZE_BYTES];
                (void)snprintf(what, sizeof what,
                               "is on %.128s, so it needs %s: tcp://HOST:PORT, where others find "
                               "it",
                               host, endpoints[i]);
                complain_of_node(self, node, what);
            }
            continue;
        }
        if (!is_pair && i > 0) {
            config_cluster_complain(self, &at, "a fused node has no such actor; leave it out");
            continue;
        }
        check_clash(self, node, i);
        if (!config_endpoint_tcp(at.text, name, &port)) {
            if (is_remote) {
                config_cluster_complain(self, &at, "the node is on another host; it takes tcp://");
            }
            continue;
        }
        if (name[0] == '*' || strcmp(name, "0.0.0.0") == 0 || strcmp(name, "[::]") == 0) {
            config_cluster_complain(self, &at,
                                    "others connect there, so it takes a name or an address; "
                                    "'bind' says what to listen on");
        } else if (!may_leave && !config_host_is_loopback(name)) {
            config_cluster_complain(
                self, &at,
                "links to another host are encrypted: set security.curve_keys (onepath keygen), "
                "or security.insecure_bind: true on a network that you trust");
        }
    }
}

/* What the gateway refuses as well: clients of other machines that nobody asks for a key. */
static void
check_gateway(config_cluster_t *self)
{
    const char *host = config_cluster_text(self, CONFIG_TOP, "gateway.host");
    if (!config_host_is_loopback(host) &&
        config_cluster_text(self, CONFIG_TOP, "security.api_key_file") == NULL &&
        !config_cluster_flag(self, CONFIG_TOP, "security.insecure_bind")) {
        complain(self, CONFIG_TOP, "gateway.host",
                 "other machines reach it: set security.api_key_file, or security.insecure_bind: "
                 "true on a network that you trust");
    }
}

proto_status_t
config_cluster_check(config_cluster_t *self)
{
    check_gateway(self);
    check_names(self);
    check_roles(self);
    for (uint32_t node = 0; node < config_cluster_node_count(self); node++) {
        check_model(self, node);
        check_limits(self, node);
        check_endpoints(self, node);
    }
    return self->problem_count == 0 ? STATUS_OK : STATUS_ERR_CONFIG;
}

"""Planted violations: each gate of the decode path must be able to turn red.

An entry names a source file, the words that are exchanged in a copy of it, a test program and the
test of it that has to fail.  The copy is linked in front of the library that holds the original.
`plant.py list` prints the table for CMake, `plant.py write NAME --source DIR --output FILE` makes
the copy, `plant.py expect NAME -- PROGRAM` runs the test and wants that failure.
"""
import argparse
import os
import subprocess
import sys

ROUTER = ("tests/gpu/test_router.c",)
RUNNER = ("tests/gpu/test_runner.c", "tests/gpu/gpu_driver.c")
PREFILL = ("tests/gpu/test_prefill_graph.c", "tests/gpu/random_rounds.c", "tests/gpu/gpu_driver.c")
SHADOW = ("tests/gpu/test_shadow.c", "tests/gpu/gpu_driver.c")
WEIGHTS = ("tests/gpu/test_weights.c", "tests/gpu/gpu_driver.c")
WINDOW = ("tests/kernels/test_verify.c", "tests/kernels/kern_sample_bench.c",
          "tests/kernels/kern_reference.c")
STATE = ("tests/kernels/test_state.c", "tests/kernels/kern_recurrent.c",
         "tests/kernels/kern_reference.c")
COMMIT = ("tests/gpu/test_state_commit.c", "tests/gpu/gpu_width.c", "tests/gpu/gpu_driver.c")
CONTRACT = ("tests/gpu/test_draft_contract.c", "tests/gpu/gpu_driver.c")
CHAIN = ("tests/gpu/test_draft.c", "tests/gpu/draft_scene.c", "tests/gpu/gpu_driver.c")
KINDS = ("tests/gpu/test_draft_kinds.c", "tests/gpu/draft_scene.c", "tests/gpu/gpu_driver.c")
DRAFT_HALF = ("tests/gpu/test_draft_half.c", "tests/gpu/gpu_width.c", "tests/gpu/gpu_driver.c")
DRAFT_RING = ("tests/gpu/test_draft_ring.c",)
RANKS = ("tests/gpu/test_ranks.c", "tests/gpu/gpu_driver.c")
CLUSTER = ("tests/config/test_cluster.c",)
CURVE = ("tests/actors/base/test_actor_curve.c", "tests/actors/base/support.c")
LINKS = ("tests/actors/base/test_actor_links.c", "tests/actors/base/support.c")
SHARE = ("tests/gpu/test_share.c", "tests/gpu/gpu_driver.c")
KV_CORE = ("tests/actors/kv-transfer/test_actor_kv_core.c", "tests/actors/kv-transfer/kv_world.c")
KV_PLAN = ("tests/actors/kv-transfer/test_actor_kv_plan.c",)
PLAN_RULES = ("tests/actors/executor/test_actor_executor_rules.c",
              "tests/actors/executor/executor_fixture.c")

# name: (source, ((old, new), ...), test program, test that fails)
PLANTED = {
    # Keys: only listed ones, each for one role and name; messages for their senders' roles.
    "credulous_key": (
        "actors/base/actor_keys.c",
        (("    return peer->role == role && (", "    (void)role;\n    return true || ("),),
        CURVE, "a_key_is_for_one_role_and_one_name"),
    "unlisted_key": (
        "actors/base/actor_zap.c",
        (("    return actor_keys_find(self->keys, text);",
          "    return actor_keys_find(self->keys, text) == ACTOR_KEY_NONE ? 0\n"
          "                                                               : actor_keys_find(self->keys, text);"),),
        CURVE, "a_key_that_is_not_listed_says_nothing"),
    "unasked_user": (
        "actors/base/actor_socket.c",
        (("        set_ipc_filter(self->handle);", "        (void)set_ipc_filter;"),),
        CURVE, "other_users_do_not_get_in"),
    "loose_role": (
        "actors/base/actor_links_receive.c",
        (("    if (!actor_roles_may_send(", "    if (false && !actor_roles_may_send("),),
        LINKS, "a_message_of_a_wrong_role_is_refused"),
    "message_in_parts": (
        "actors/base/actor_links_send.c",
        (("            remote->packs ? actor_socket_send_packed(",
          "            remote->packs && false ? actor_socket_send_packed("),),
        LINKS, "messages_are_one_part_between_those_who_can"),
    # Padded requests resolve to the null page.
    "stale_padding": (
        "kernels/kern_metadata.c",
        (("        if (b < a->actual_bs) {\n            const int32_t *blocks",
          "        if (b < a->bs) {\n            const int32_t *blocks"),),
        ROUTER, "tables_are_expanded_and_padded_with_the_null_page"),
    "padding_writes": (
        "kernels/kern_metadata.c",
        (("        if (b < a->actual_bs) {\n            const int32_t *blocks",
          "        if (b < a->bs) {\n            const int32_t *blocks"),
         ("            if (b < a->actual_bs) {\n                int32_t position",
          "            if (b < a->bs) {\n                int32_t position"),
         ("is_live ? valid + (int32_t)a->width : 1", "valid + (int32_t)a->width"),
         ("int32_t slot = is_live ? a->staged_slots[b] : 0;",
          "int32_t slot = a->staged_slots[b];"),
         ("is_live ? a->valid_lengths[slot] : 0", "a->valid_lengths[slot]")),
        RUNNER, "padding_touches_no_live_block"),
    # Views are built once for each bs and keep their addresses.
    "moving_view": (
        "gpu/backend/paged/router_cache_group.c",
        (("    if (view->bs == 0) {\n        for",
          "    static uint32_t turn;\n    turn = (turn + 1) % 3;\n    {\n        for"),
         ("router_stacks_decode_locations(&self->stacks, i);",
          "router_stacks_decode_locations(&self->stacks, i) + turn;")),
        ROUTER, "lazily_built_views_are_pointer_stable"),
    # The guard has no list of exceptions.
    "blind_guard": (
        "gpu/run/run_guard.c",
        (("entry->address == address &&", "(entry->address == address || address != NULL) &&"),),
        RUNNER, "a_planted_rebind_is_caught_by_the_guard"),
    # Capture is the idle refresh.
    "live_capture": (
        "gpu/backend/backend_base.c", ((".actual_bs = 0,", ".actual_bs = bs,"),),
        ROUTER, "capture_is_the_idle_refresh"),
    # A slot does not depend on the kernel's page size.
    "page_size_in_slot": (
        "kernels/kern_metadata.c",
        (("position % (int32_t)page_size", "position % 16"),),
        ROUTER, "slots_do_not_depend_on_the_page_size"),
    # A live batch brings the table of every consumed group.
    "missing_table": (
        "gpu/backend/paged/router_cache_group.c",
        (("for (uint32_t i = 0; actual_bs > 0 && i < self->leaf_count; i++) {",
          "for (uint32_t i = 0; actual_bs > 9999 && i < self->leaf_count; i++) {"),),
        ROUTER, "a_live_batch_without_a_group_is_refused"),
    # The extend entry refuses pure decode, a missing input and a replay it cannot bound.
    "decode_through_init": (
        "gpu/backend/backend_base.c", (("extend->mode == BACKEND_MODE_DECODE || ", ""),),
        ROUTER, "init_refuses_decode_an_incomplete_bundle_and_replay"),
    "optional_input": (
        "gpu/backend/backend_base.c", ((" && extend->extend_prompt_lens_host != NULL", ""),),
        ROUTER, "init_refuses_decode_an_incomplete_bundle_and_replay"),
    "swallowed_replay": (
        "gpu/backend/backend_base.c",
        (("if (extend->extend_replay_lens_host[i] != 0) {",
          "if (extend->extend_replay_lens_host[i] < 0) {"),),
        ROUTER, "init_refuses_decode_an_incomplete_bundle_and_replay"),
    # A pool is validated before anything is published.
    "unchecked_rebind": (
        "gpu/backend/backend_base.c",
        (("    proto_status_t status = backend_validate_cache_pool(self, pool);\n",
          "    proto_status_t status = backend_validate_cache_pool(self, pool);\n"
          "    status = STATUS_OK;\n"),),
        ROUTER, "a_rebind_takes_the_same_geometry_only"),
    # Support is the AND of the tree.
    "support_by_or": (
        "gpu/backend/backend_support.c",
        (("result.prefill_graph = result.prefill_graph && child.prefill_graph;",
          "result.prefill_graph = result.prefill_graph || child.prefill_graph;"),),
        ROUTER, "graph_support_is_composed_with_and"),
    # Extend spans continue behind the prefix.
    "span_without_prefix": (
        "kernels/kern_metadata.c", (("a->prefix_lens[b] + i);", "i);"),),
        ROUTER, "extend_spans_follow_the_table"),
    # Blocks that a plan names are cleared before use.
    "uncleared_block": (
        "kernels/kern_metadata.c",
        (("memset(field->pages + (size_t)block * field->stride_bytes, 0, field->page_bytes);",
          "memset(field->pages + (size_t)block * field->stride_bytes, 0, 0);"),),
        RUNNER, "clears_zero_the_named_blocks"),
    # A replayed prefill leaves nothing of its padding in what the next segment reads.
    "unscrubbed_break": (
        "gpu/run/run_segments.c",
        (("if (is_padded && part->output_form == KERN_FORM_ROWS) {",
          "if (is_padded && rows == 0) {"),),
        PREFILL, "rows_past_the_live_ones_are_scrubbed"),
    # A prefill graph that cannot be captured is no reason to serve without one.
    "quiet_capture": (
        "gpu/run/run_build.c",
        (("        status = run_executor_capture(self);\n",
          "        status = run_executor_capture(self) == STATUS_ERR_NO_MEMORY\n"
          "                     ? STATUS_ERR_NO_MEMORY : STATUS_OK;\n"),),
        PREFILL, "a_capture_that_fails_is_fatal"),
    # The shadow check sees every declared span and the logits.
    "blind_shadow": (
        "gpu/run/run_shadow.c",
        (("if (*at_p < check->logit_bytes) {", "if (*at_p > check->logit_bytes) {"),
         ("if (*at_p < span->compare_bytes) {", "if (*at_p > span->compare_bytes) {")),
        SHADOW, "checks_and_switches_change_no_answer"),
    # A window ends with the first candidate that is not the row's own token.
    "credulous_window": (
        "kernels/kern_sample.c",
        (("goes_on = sample_row(self, accepted, candidate);",
          "goes_on = sample_row(self, accepted, candidate) || accepted < width;"),),
        WINDOW, "candidates_are_verified"),
    # A drafter's answer is a peer's bytes: only tokens, only for this request, only its own.
    "credulous_answer": (
        "gpu/run/run_draft.c",
        (("if ((uint32_t)token >= self->options.vocabulary) {", "if (token == INT32_MIN) {"),),
        DRAFT_HALF, "what_is_not_fit_is_ignored_with_a_counter"),
    "foreign_candidates": (
        "gpu/run/run_draft.c",
        (("bool fits = window->generation == round->generations[round->extends + d] &&\n"
          "                    window->generation == self->generations[slot] &&\n"
          "                    window->length", "bool fits = window->length"),),
        DRAFT_HALF, "another_request_in_the_slot_gets_none_of_them"),
    "undead_drafter": (
        "gpu/draft/draft_ring.c",
        (("atomic_load(&control->answer_epoch) == epoch;",
          "atomic_load(&control->answer_epoch) != 0;"),),
        DRAFT_RING, "answers_of_another_step_or_epoch_do_not_count"),
    # A fresh request's state is a logical zero: no block is read.
    "fresh_state_read": (
        "kernels/kern_state.c",
        (("int32_t in = before > 0 ? block_after(group, request, before) : 0;",
          "int32_t in = block_after(group, request, before > 0 ? before : after);"),),
        STATE, "blocks_come_from_the_columns_of_the_last_tokens"),
    # A commit clamps what was accepted and skips the null page.
    "unclamped_commit": (
        "kernels/kern_state.c",
        (("        accepted = accepted > (int32_t)a->width ? (int32_t)a->width : accepted;\n",
          ""),),
        STATE, "commit_rows_point_at_the_accepted_state"),
    "committed_null_page": (
        "kernels/kern_state.c", (("bool live = pages[i] > 0;", "bool live = pages[i] >= 0;"),),
        STATE, "commit_rows_point_at_the_accepted_state"),
    # What lies in a scratch that nothing filled is an earlier request's.
    "unseeded_commit": (
        "kernels/kern_state.c",
        (("live = live && a->seeds[i] >= 0;", "live = live && a->seeds[i] >= -1;"),),
        STATE, "commit_rows_point_at_the_accepted_state"),
    # States are committed once in a round ...
    "twice_committed": (
        "gpu/run/run_verify.c",
        (("    backend_commit_speculative_state_after_verify(o->backend, accept_lengths + "
          "sampled_extends, bs,\n"
          "                                                  extends);\n",
          "    for (int i = 0; i < 2; i++) {\n"
          "        backend_commit_speculative_state_after_verify(\n"
          "            o->backend, accept_lengths + sampled_extends, bs, extends);\n"
          "    }\n"),),
        COMMIT, "a_reject_at_every_index_keeps_tokens_and_states"),
    # ... and in a mixed round those of the decodes, which stand behind the extends.
    "commit_of_extends": (
        "gpu/backend/state/backend_gdn_forward.c",
        (("        replay_rows(self, index->in_blocks + num_extends, bs);",
          "        replay_rows(self, index->in_blocks, bs);"),),
        COMMIT, "disturbed_requests_keep_tokens_and_states"),
    # A sum over the ranks has one order, whoever adds up.
    "own_rank_first": (
        "gpu/device/device_host_comm.c",
        (("        const float *first = slot_of(a, 0);\n"
          "        const float *second = slot_of(a, 1);\n",
          "        uint32_t own = a->comm->base.rank;\n"
          "        const float *first = slot_of(a, own);\n"
          "        const float *second = slot_of(a, own == 0 ? 1 : own - 1);\n"),
         ("            const float *next = slot_of(a, rank);\n",
          "            const float *next = slot_of(a, own == 0 ? rank : (own + rank - 1) %\n"
          "                                               a->comm->base.rank_count);\n")),
        RANKS, "collectives_add_up_in_the_order_of_the_ranks"),
    # A draft's steps go on where the accepted tokens end, at the lengths that they say.
    "step_behind_itself": (
        "gpu/draft/draft_chain.c",
        (("b->frontier, step - 1, b->step_positions", "b->frontier, step, b->step_positions"),),
        CHAIN, "a_forced_reject_costs_its_round_and_nothing_else"),
    "lengths_not_advanced": (
        "gpu/draft/draft_chain.c",
        (("        backend_advance_draft_forward_metadata(frame->backend, b->step_lens, bs);\n", ""),),
        CHAIN, "a_draft_that_is_the_target_is_always_right"),
    # Nothing that is no token reaches the target's embedding.
    "candidate_out_of_range": (
        "kernels/kern_draft.c",
        (("from[kept] >= 0 &&\n               (uint32_t)from[kept] < a->vocabulary",
          "from[kept] != -1"),),
        ("tests/kernels/test_draft.c", "tests/kernels/kern_reference.c"),
        "what_is_no_token_ends_the_row_and_is_counted"),
    # The last row of a chunk reads the token behind it; rows that a request lacks stay unwritten.
    "chunk_without_its_next": (
        "kernels/kern_draft.c",
        (("a->extend_next_ids[b] >= 0 ? a->extend_next_ids[b] : sampled", "sampled"),),
        KINDS, "disturbances_change_no_proposal"),
    "unlimited_window": (
        "kernels/kern_draft.c", (("            if ((int32_t)(a->n - t) > a->counts[b]) {",
                                  "            if ((int32_t)a->n < 0) {"),),
        KINDS, "disturbances_change_no_proposal"),
    # A capture's fill, not a replay's refresh, ends the rows of a block; both slots are apart.
    "block_seeded_in_replay": (
        "gpu/backend/paged/backend_slots.c",
        (("} else if (!refresh->for_graph_replay || refresh->actual_bs == 0) {", "} else {"),),
        CONTRACT, "rows_of_a_block_see_its_end"),
    "draft_with_a_floor": (
        "gpu/backend/paged/backend_slots.c",
        (("leaf->options.is_draft ? 1 : (int32_t)leaf->options.width",
          "(int32_t)leaf->options.width"),),
        CONTRACT, "edits_touch_what_they_name"),
    "ungated_sink": (
        "gpu/draft/draft_block.c",
        (("return mode == BACKEND_MODE_DECODE && width == self->frame.options.width;",
          "return mode != BACKEND_MODE_IDLE && width <= self->frame.options.width;"),),
        CONTRACT, "the_sink_is_armed_under_its_gate_alone"),
    "capture_configured_again": (
        "gpu/model/model_base.c",
        (("self->taps.count > 0 || taps->count == 0 ||", "taps->count == 0 ||"),),
        CONTRACT, "capture_is_configured_once_and_fails_when_missing"),
    # Ranks compare what they were told before they compute with each other.
    "blind_mirror": (
        "gpu/run/run_ranks.c",
        (("    stage->mirror = self->mirror;\n", "    stage->mirror = 0;\n"),),
        RANKS, "ranks_that_were_told_different_things_end"),
    # Weights come to the device by uploads alone.
    "stored_by_the_host": (
        "gpu/model/model_experts.c",
        (("status = device_upload(weights->device, memory + i * size_bytes, changed, size_bytes);",
          "status = weights == NULL ? STATUS_ERR_DEVICE : STATUS_OK;\n"
          "        memcpy(memory + i * size_bytes, changed, size_bytes);"),),
        WEIGHTS, "weights_come_by_uploads_alone"),
    # A plan is refused before the device sees it.
    "shared_write": (
        "actors/executor/actor_executor_plan.c",
        (("        if (!actor_executor_tables_exclusive(self->tables, g, block)) {",
          "        if (block == 0 && !actor_executor_tables_exclusive(self->tables, g, block)) {"),),
        PLAN_RULES, "what_is_written_belongs_to_one_row"),
    "column_missing": (
        "actors/executor/actor_executor_plan.c",
        (("    if (missing != UINT32_MAX) {", "    if (missing != UINT32_MAX && end == 0) {"),),
        PLAN_RULES, "every_token_that_is_read_or_written_has_a_block"),
    # Cluster files: a key that stands twice, and which of two values wins.
    "double_key": (
        "config/config_cluster_read.c",
        (("if (strcmp(seen->names[i], event->text) == 0) {",
          "if (strcmp(seen->names[i], event->text) == 0 && i > MAPPING_KEYS_MAX) {"),),
        CLUSTER, "what_is_wrong_is_refused_with_its_place_and_the_remedy"),
    "file_above_environment": (
        "config/config_cluster.c",
        (("    if (self->layers[CONFIG_LAYER_ENVIRONMENT][i].text != NULL) {",
          "    if (self->layers[CONFIG_LAYER_ENVIRONMENT][i].text != NULL &&\n"
          "        self->layers[CONFIG_LAYER_TOP][i].text == NULL) {"),),
        CLUSTER, "command_line_wins_over_environment_over_file_and_the_origin_is_kept"),
    # A layer is recorded behind its cache write, once, on every path.
    "unrecorded_layer": (
        "gpu/backend/backend_base.c",
        (("    self->vtable->forward(self, forward);\n    record_layer_cache_ready(self, "
          "forward->mode, forward->layer + 1);",
          "    self->vtable->forward(self, forward);\n    record_layer_cache_ready(self, "
          "forward->mode, forward->layer);"),),
        SHARE, "each_layer_is_recorded_once_on_every_path"),
    # A piece is held against what is expected; a fence waits for the copies that have begun; every
    # byte of a page comes from exactly one rank.
    "credulous_piece": (
        "actors/kv-transfer/actor_kv_destination.c",
        (("if (column->layers != piece->layer_begin) {",
          "if (column->layers > piece->layer_begin + 9999) {"),),
        KV_CORE, "pieces_that_lie_end_the_transfer"),
    "hasty_fence": (
        "actors/kv-transfer/actor_kv_table.c",
        (("transfer->state != KV_TRANSFER_DYING || transfer->flying > 0",
          "transfer->state != KV_TRANSFER_DYING"),),
        KV_CORE, "a_fence_at_the_destination_waits_for_its_own_copies"),
    "shifted_fragment": (
        "actors/kv-transfer/actor_kv_plan.c",
        (("(unit - field->parts[part].begin)", "(unit)"),),
        KV_PLAN, "every_rank_gets_its_own_bytes"),
}


def library_of(tests):
    """What a test program links, by the folder of its sources."""
    if tests[0].startswith("tests/actors/base/"):
        return "onepath_actors_base"
    if tests[0].startswith("tests/actors/executor/"):
        return "onepath_actors_executor"
    if tests[0].startswith("tests/actors/kv-transfer/"):
        return "onepath_actors_kv_transfer"
    if tests[0].startswith("tests/config/"):
        return "onepath_config"
    return "onepath_kernels" if tests[0].startswith("tests/kernels/") else "onepath_gpu_run"


def write(name, source, output):
    path, changes, _, _ = PLANTED[name]
    with open(os.path.join(source, path), encoding="utf-8") as file:
        text = file.read()
    for old, new in changes:
        if text.count(old) != 1:
            sys.exit(f"planted violation {name}: {path} has these words {text.count(old)} times, "
                     f"not once; bring tests/planted/plant.py up to date: {old!r}")
        text = text.replace(old, new)
    with open(output, "w", encoding="utf-8") as file:
        file.write(text)


def expect(name, program):
    """The named test fails, or the program stops at it; nothing else is an answer."""
    test = PLANTED[name][3]
    done = subprocess.run([program], capture_output=True, text=True, timeout=100,
                          env={**os.environ, "ONEPATH_ONLY": test})
    text = done.stdout + done.stderr
    print(text)
    if f":{test}:" not in text or done.returncode == 0:
        sys.exit(f"the violation '{name}' was not found by {test}")
    print(f"found by {test}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("list", "write", "expect"))
    parser.add_argument("name", nargs="?")
    parser.add_argument("program", nargs="?")
    parser.add_argument("--source")
    parser.add_argument("--output")
    options = parser.parse_args()
    if options.verb == "list":
        print(";".join(f"{name}|{path}|{','.join(tests)}|{library_of(tests)}"
                       for name, (path, _, tests, _) in PLANTED.items()), end="")
    elif options.verb == "write":
        write(options.name, options.source, options.output)
    else:
        expect(options.name, options.program)


if __name__ == "__main__":
    main()

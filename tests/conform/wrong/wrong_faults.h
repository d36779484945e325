/* wrong_faults.h - the functions behind the faults; the table is in wrong_faults.c. */
#ifndef WRONG_FAULTS_H
#define WRONG_FAULTS_H

#include "wrong.h"

#define WRONG_OUTPUT(name)                                                                         \
    bool name(wrong_t *self, wrong_message_t *message, actor_outbox_t *outbox)
#define WRONG_INPUT(name)                                                                          \
    bool name(wrong_t *self, const actor_input_t *input, proto_body_t *body, actor_outbox_t *outbox)

WRONG_OUTPUT(wrong_skip_admit);
WRONG_OUTPUT(wrong_admit_taken);
WRONG_OUTPUT(wrong_admit_tokens);
WRONG_OUTPUT(wrong_admit_length);
WRONG_OUTPUT(wrong_no_reset);
WRONG_OUTPUT(wrong_stale_base);
WRONG_OUTPUT(wrong_first_patch);
WRONG_OUTPUT(wrong_step_again);
WRONG_OUTPUT(wrong_slot_range);
WRONG_OUTPUT(wrong_slot_twice);
WRONG_OUTPUT(wrong_group_range);
WRONG_OUTPUT(wrong_column_range);
WRONG_OUTPUT(wrong_block_range);
WRONG_OUTPUT(wrong_no_blocks);
WRONG_OUTPUT(wrong_foreign_block);
WRONG_OUTPUT(wrong_state);
WRONG_OUTPUT(wrong_begin);
WRONG_OUTPUT(wrong_budget);
WRONG_OUTPUT(wrong_shape);
WRONG_OUTPUT(wrong_width);
WRONG_OUTPUT(wrong_samples);
WRONG_OUTPUT(wrong_no_clear);
WRONG_OUTPUT(wrong_keep_slot);
WRONG_OUTPUT(wrong_reuse_early);
WRONG_OUTPUT(wrong_admit_again);
WRONG_OUTPUT(wrong_extends_early);
WRONG_OUTPUT(wrong_borrows_block);
WRONG_OUTPUT(wrong_count_plans);
WRONG_OUTPUT(wrong_full_behind);
WRONG_OUTPUT(wrong_noise);
WRONG_OUTPUT(wrong_more_noise);
WRONG_OUTPUT(wrong_finished_twice);
WRONG_OUTPUT(wrong_counts);
WRONG_OUTPUT(wrong_nan_is_length);
WRONG_OUTPUT(wrong_no_retry);
WRONG_OUTPUT(wrong_no_lost);
WRONG_OUTPUT(wrong_finished_early);
WRONG_OUTPUT(wrong_after_end);
WRONG_OUTPUT(wrong_lost_row);
WRONG_OUTPUT(wrong_index);
WRONG_OUTPUT(wrong_value);
WRONG_OUTPUT(wrong_no_logprobs);
WRONG_OUTPUT(wrong_tokens_shape);
WRONG_OUTPUT(wrong_gateway);
WRONG_OUTPUT(wrong_no_model_info);
WRONG_OUTPUT(wrong_stays_ready);
WRONG_OUTPUT(wrong_queue_len);
WRONG_OUTPUT(wrong_no_nak);
WRONG_OUTPUT(wrong_overrun_hidden);
WRONG_OUTPUT(wrong_prefix_hidden);
WRONG_OUTPUT(wrong_good_status);
WRONG_OUTPUT(wrong_stop_is_length);
WRONG_OUTPUT(wrong_never_is_invalid);
WRONG_OUTPUT(wrong_no_executor_is_length);
WRONG_OUTPUT(wrong_short_hidden);
WRONG_OUTPUT(wrong_resume_count);
WRONG_OUTPUT(wrong_ends_elsewhere);
WRONG_OUTPUT(wrong_note_end);
WRONG_OUTPUT(wrong_hides_tokens);
WRONG_OUTPUT(wrong_no_reset_after_fault);
WRONG_OUTPUT(wrong_no_reset_after_loss);
WRONG_OUTPUT(wrong_note_loss);

WRONG_INPUT(wrong_note_time);
WRONG_INPUT(wrong_never_answers);
WRONG_INPUT(wrong_ignores_cancel);
WRONG_INPUT(wrong_cancel_index);
WRONG_INPUT(wrong_ignores_refusal);
WRONG_INPUT(wrong_no_heartbeats);
WRONG_INPUT(wrong_dies);
WRONG_INPUT(wrong_starves);
WRONG_INPUT(wrong_overrun);
WRONG_INPUT(wrong_no_stop);
WRONG_INPUT(wrong_no_emitted);
WRONG_INPUT(wrong_no_timeout);
WRONG_INPUT(wrong_depth);
WRONG_INPUT(wrong_answers_again);
WRONG_INPUT(wrong_prefix);
WRONG_INPUT(wrong_short);
WRONG_OUTPUT(wrong_invalid_is_never);
WRONG_INPUT(wrong_note_emitted);
WRONG_INPUT(wrong_answers_finish);
WRONG_INPUT(wrong_computes_on);
WRONG_INPUT(wrong_keeps_gateway);
WRONG_INPUT(wrong_note_results);
WRONG_INPUT(wrong_remembers_ids);
WRONG_INPUT(wrong_gives_up);
WRONG_INPUT(wrong_blames_waiting);
WRONG_INPUT(wrong_hates_repeats);
WRONG_INPUT(wrong_serves_no_more);
WRONG_INPUT(wrong_spins);

void wrong_answer_release(wrong_t *self, actor_outbox_t *outbox);
void wrong_send_tokens(wrong_t *self, actor_outbox_t *outbox);

#endif

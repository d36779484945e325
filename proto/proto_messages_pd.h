/* proto_messages_pd.h - the fields of messages 80 to 116: prefill and decode on different nodes.
 * Included by proto_messages.h only, whose rules hold here too.  Long because the state machines
 * stand beside their messages.
 *
 * The parties.  A decode node has gateway, decode-role, scheduler, executor, kv-transfer; a prefill
 * node has prefill-role, scheduler, executor, kv-transfer.  The decode-role stands between gateways
 * and its scheduler and speaks to each as the other would (MODEL_INFO, SUBMIT, FINISH, TOKENS,
 * FINISHED, LOAD).  `transfer` is the key of one prefill carried over, minted by the decode-role,
 * never used twice, also not by a later incarnation: high half of its epoch mixed, low half
 * counted.  A request that is tried again gets another transfer.
 *
 * One request, in order (D: decode node, P: prefill node):
 *    1 gateway    -> D role   SUBMIT
 *    2 D role     -> D sched  RESERVE          blocks for the prompt, its first token counted in
 *    3 D sched    -> D role   RESERVED         or FINISHED.  The blocks are zeroed where that
 *                                              matters and no step in flight can write them
 *    4 D role     -> D kvt    TRANSFER_EXPECT  these blocks, of these generations, may be written
 *    5 D role     -> P role   TRANSFER_OFFER   tokens, sampling, the columns wanted
 *    6 P role     -> D role   OFFER_TAKEN      or TRANSFER_FAILED.  From here LEASE_RENEW each 1 s
 *    7 P role     -> P kvt    TRANSFER_SERVE   what to send, and to whom
 *      P role     -> P sched  SUBMIT           with `transfer`, one token to generate
 *    8 P sched    -> P kvt    TRANSFER_PART    with each planned chunk: columns, blocks, step
 *      P executor             writes which layers of that step are done (proto_layers.h)
 *      P kvt      -> D kvt    KV_OFFER, then a KV_PART for each piece that is ready; D kvt brings
 * it over (shared memory, or KV_PULL, KV_DATA, KV_END) and says KV_LANDED 9 P sched    -> P role
 * TOKENS, FINISHED the first token; the blocks stay, HELD P role     -> D role   PREFILLED token,
 * log-probabilities, candidates 10 D kvt      -> D role   TRANSFER_DONE    every column landed, or
 * it failed D role     -> gateway  TOKENS           the first token, when both are there D role ->
 * D sched  ACTIVATE         tokens with the first one, candidates D sched    -> D exec   ADMIT with
 * `computed`, then decode rows: no extend 11 D role     -> P role   TRANSFER_CLOSE   P may let go
 *      P role     -> P kvt    TRANSFER_CANCEL  harmless when it is done
 *      P role     -> P sched  RELEASE          held blocks go back: FENCE first
 *      P sched    -> P kvt    FENCE; answered FENCED
 *      P sched    -> P role   RETURNED         every block is back
 *      P role     -> D role   TRANSFER_CLOSED
 *   12 D sched    -> D role   TOKENS, FINISHED passed on to the gateway
 * A prompt shorter than a block, and one that is whole in D's prefix cache, are the same round with
 * fewer or no columns; an empty manifest still gets its KV_OFFER, one KV_PART and TRANSFER_DONE.
 *
 * Cancel, at any moment: the decode-role notes the id first, then says FINISH (or RELEASE, before
 * ACTIVATE) to its scheduler, TRANSFER_CANCEL to its kv-transfer, TRANSFER_CLOSE to P.  It is over
 * when RETURNED (blocks of D) and TRANSFER_CLOSED (blocks of P, or P's incarnation is gone) came.
 * Every message of a transfer may come early (parked until the one that opens it: PART before
 * SERVE, OFFER before EXPECT), twice (answered as the first time) or late (ignored by state).
 *
 * States of a transfer at the decode-role:
 *   WAITING   no prefill node is there, or none is needed yet  -> RESERVING
 *   RESERVING RESERVE is out                                   RESERVED -> OFFERED
 *   OFFERED   the offer is out, its answer awaited for a lease OFFER_TAKEN -> RUNNING
 *   RUNNING   renews the lease; awaits PREFILLED and TRANSFER_DONE, in any order
 *                                                              both -> ACTIVE
 *   ACTIVE    the scheduler decodes                            FINISHED -> CLOSING
 *   CLOSING   awaits TRANSFER_CLOSED and RETURNED              both -> gone
 *   A failure before ACTIVE: CLOSING of this transfer, and the request once more from WAITING under
 *   another key (another prefill node, or its own executor where that is allowed), else its end.
 * States at the prefill-role:
 *   QUEUED    its scheduler has it                             FINISHED -> HELD
 *   HELD      prefilled; blocks wait for the peer              TRANSFER_CLOSE -> RELEASING
 *   RELEASING RELEASE is out                                   RETURNED -> gone
 *   No LEASE_RENEW for `lease_ns`, a TRANSFER_CLOSE, or the peer's incarnation is gone: from QUEUED
 *   FINISH to the scheduler and RELEASING; from HELD RELEASING.
 * States of a block (sched_pool.h): HELD from the P scheduler's FINISHED to FENCED; INCOMING from
 *   RESERVED to ACTIVATE; FENCING from FENCE to FENCED; then free, or cached if it is known as a
 *   page.  A kv-transfer that is not there (its link is down) cannot read or write: a fence to it
 *   holds at once, because its successor knows nothing of the transfer. */
#ifndef PROTO_MESSAGES_PD_H
#define PROTO_MESSAGES_PD_H

/* Runs of columns of one request: run i is columns [columns[i], + counts[i]) of group groups[i];
 * blocks and generations lie run by run. */
#define PROTO_FIELDS_runs(FIELD)                                                                   \
    FIELD(run_groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "[runs] cache group")                        \
    FIELD(run_columns, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[runs] first column")                     \
    FIELD(run_counts, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[runs] columns, at least 1")               \
    FIELD(run_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[sum of counts] block within its group")   \
    FIELD(run_generations, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[sum of counts] of the block")

/* ---- role to role ---------------------------------------------------------------------------- */
#define PROTO_FIELDS_transfer_offer(FIELD)                                                         \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(prompt_length, U32, PROTO_TOKENS_MAX, OPEN, "tokens, at least 1")                        \
    FIELD(computed, U32, PROTO_TOKENS_MAX, OPEN, "of these, at the front, already at the asker")   \
    FIELD(emitted, U32, PROTO_TOKENS_MAX, OPEN, "as in SUBMIT")                                    \
    FIELD(generation_max, U32, PROTO_TOKENS_MAX, OPEN, "as in SUBMIT: of the whole request")       \
    FIELD(priority, I64, 1000000, OPEN, "as in SUBMIT")                                            \
    FIELD(queue_timeout_ns, U64, UINT64_MAX, OPEN, "as in SUBMIT")                                 \
    FIELD(kv_name, STR, 31, OPEN, "kv-transfer that the cache is for; empty: only the token")      \
    FIELD(kv_epoch, U64, UINT64_MAX, OPEN, "its incarnation")                                      \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "model and layout that both must have")      \
    FIELD(page_hashes, BIN, PROTO_PAGES_MAX * 32, OPEN, "as in SUBMIT")                            \
    PROTO_FIELDS_runs(FIELD) FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[prompt_length]")  \
        FIELD(sampling, COL_U8, 16384, PRIVATE, "an encoded SAMPLING body")
#define PROTO_FIELDS_offer_taken(FIELD)                                                            \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(lease_ns, U64, UINT64_MAX, OPEN, "without a LEASE_RENEW for so long it is dropped")      \
    FIELD(kv_name, STR, 31, OPEN, "kv-transfer that will send")                                    \
    FIELD(kv_epoch, U64, UINT64_MAX, OPEN, "its incarnation")
#define PROTO_FIELDS_lease_renew(FIELD)                                                            \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key; 0 = only those of the column")           \
    FIELD(transfers, COL_U64, PROTO_ROWS_MAX, OPEN, "every transfer open at this peer")
#define PROTO_FIELDS_prefilled(FIELD)                                                              \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(row_flags, U32, 255, OPEN, "PROTO_ROW_*: STOP_TOKEN ends the request here")              \
    FIELD(cached_tokens, U32, PROTO_TOKENS_MAX, OPEN, "prompt tokens from the prefix cache")       \
    FIELD(queue_ns, U64, UINT64_MAX, OPEN, "from submit to first plan, ns")                        \
    FIELD(part_count, U32, PROTO_ROWS_MAX, OPEN, "TRANSFER_PARTs that were made")                  \
    FIELD(tokens, COL_I32, 1, PRIVATE, "the first token")                                          \
    FIELD(logprob_width, U32, 255, OPEN, "entries; 0 = none")                                      \
    FIELD(logprob_ids, COL_I32, 255, PRIVATE, "[logprob_width]")                                   \
    FIELD(logprob_values, COL_F32, 255, PRIVATE, "[logprob_width] natural logarithm")              \
    FIELD(candidates, COL_I32, 16, PRIVATE, "what a drafter proposes next; -1 = none")
#define PROTO_FIELDS_transfer_failed(FIELD)                                                        \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(reason, U32, 15, OPEN, "proto_finish_reason_t: ERROR or REFUSED")                        \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(code, STR, 64, OPEN, "as in FINISHED; also: kv_transfer_failed, lease_expired")          \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "a sentence with the numbers")                    \
    FIELD(retry_after_ms, U32, 600000, OPEN, "0 = do not retry")
#define PROTO_FIELDS_transfer_close(FIELD)                                                         \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(status, I64, 1000, OPEN, "OK: everything arrived; else why it is given up")
#define PROTO_FIELDS_transfer_closed(FIELD)                                                        \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(block_count, U32, PROTO_BLOCKS_MAX, OPEN, "blocks that went back; 0 if unknown to it")

/* ---- role and scheduler of one node ---------------------------------------------------------- */
#define PROTO_FIELDS_reserve(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(prompt_length, U32, PROTO_TOKENS_MAX, OPEN, "tokens, the first generated one included")  \
    FIELD(generation_max, U32, PROTO_TOKENS_MAX, OPEN, "tokens to generate beyond these")          \
    FIELD(emitted, U32, PROTO_TOKENS_MAX, OPEN,                                                    \
          "tokens at their end already generated, 1 or more")                                      \
    FIELD(priority, I64, 1000000, OPEN, "as in SUBMIT")                                            \
    FIELD(queue_timeout_ns, U64, UINT64_MAX, OPEN, "as in SUBMIT")                                 \
    FIELD(page_hashes, BIN, PROTO_PAGES_MAX * 32, OPEN, "32 bytes for each whole page known")
#define PROTO_FIELDS_reserved(FIELD)                                                               \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(computed, U32, PROTO_TOKENS_MAX, OPEN, "tokens at the front found in the prefix cache")  \
    FIELD(wanted, U32, PROTO_TOKENS_MAX, OPEN, "tokens that the cache must hold: prompt_length-1") \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "of the executor, as in EXECUTOR_INFO")      \
    PROTO_FIELDS_runs(FIELD)
#define PROTO_FIELDS_activate(FIELD)                                                               \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(tokens, COL_I32, PROTO_TOKENS_MAX, PRIVATE, "[prompt_length of RESERVE]")                \
    FIELD(sampling, COL_U8, 16384, PRIVATE, "an encoded SAMPLING body")                            \
    FIELD(candidates, COL_I32, 16, PRIVATE, "as in PREFILLED")                                     \
    FIELD(generation_max, U32, PROTO_TOKENS_MAX, OPEN, "as in RESERVE")                            \
    FIELD(emitted, U32, PROTO_TOKENS_MAX, OPEN, "as in RESERVE")                                   \
    FIELD(priority, I64, 1000000, OPEN, "as in RESERVE")                                           \
    FIELD(queue_timeout_ns, U64, UINT64_MAX, OPEN, "as in SUBMIT")                                 \
    FIELD(page_hashes, BIN, PROTO_PAGES_MAX * 32, OPEN, "as in RESERVE")
#define PROTO_FIELDS_release(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(status, I64, 1000, OPEN, "OK: done with it; else why it is given up")
#define PROTO_FIELDS_returned(FIELD)                                                               \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(block_count, U32, PROTO_BLOCKS_MAX, OPEN, "blocks that were held or incoming")

/* ---- role and kv-transfer of one node -------------------------------------------------------- */
#define PROTO_FIELDS_transfer_expect(FIELD)                                                        \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(computed, U32, PROTO_TOKENS_MAX, OPEN, "as in RESERVED")                                 \
    FIELD(wanted, U32, PROTO_TOKENS_MAX, OPEN, "as in RESERVED")                                   \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "as in RESERVED")                            \
    PROTO_FIELDS_runs(FIELD)
#define PROTO_FIELDS_transfer_serve(FIELD)                                                         \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(computed, U32, PROTO_TOKENS_MAX, OPEN, "as in TRANSFER_OFFER")                           \
    FIELD(wanted, U32, PROTO_TOKENS_MAX, OPEN, "tokens that the cache must hold")                  \
    FIELD(kv_name, STR, 31, OPEN, "kv-transfer of the destination")                                \
    FIELD(kv_epoch, U64, UINT64_MAX, OPEN, "its incarnation")                                      \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "as in TRANSFER_OFFER")                      \
    PROTO_FIELDS_runs(FIELD)
#define PROTO_FIELDS_transfer_done(FIELD)                                                          \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(status, I64, 1000, OPEN, "OK: every part landed (both sides say so); else what failed")  \
    FIELD(code, STR, 64, OPEN, "\"\", or kv_transfer_failed, cancelled, checksum, stale, layout")  \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "both values, where two do not match")            \
    FIELD(part_count, U32, PROTO_ROWS_MAX, OPEN, "parts that landed")                              \
    FIELD(size_bytes, U64, UINT64_MAX, OPEN, "bytes that landed")                                  \
    FIELD(duration_ns, U64, UINT64_MAX, OPEN, "from the first part to the last, ns")
#define PROTO_FIELDS_transfer_cancel(FIELD)                                                        \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key; answered TRANSFER_DONE, also if unknown")

/* ---- scheduler and kv-transfer of one node --------------------------------------------------- */
#define PROTO_FIELDS_transfer_part(FIELD)                                                          \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(part, U32, PROTO_ROWS_MAX, OPEN, "from 0, one for each planned chunk")                   \
    FIELD(step, U64, UINT64_MAX, OPEN, "the plan that computes it; 0 = it is there already")       \
    FIELD(begin, U32, PROTO_TOKENS_MAX, OPEN, "first token that is complete with this part")       \
    FIELD(end, U32, PROTO_TOKENS_MAX, OPEN, "tokens complete with this part")                      \
    FIELD(is_last, BOOL, 1, OPEN, "the prefill is complete")                                       \
    PROTO_FIELDS_runs(FIELD)
#define PROTO_FIELDS_fence(FIELD)                                                                  \
    FIELD(generation, U64, UINT64_MAX, OPEN, "number of this fence, FENCED repeats it")            \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "no copy of this transfer may begin any more")
#define PROTO_FIELDS_fenced(FIELD)                                                                 \
    FIELD(generation, U64, UINT64_MAX, OPEN, "number of the fence")                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "copies that had begun have ended")

/* ---- kv-transfer to kv-transfer -------------------------------------------------------------- */
#define PROTO_FIELDS_kv_offer(FIELD)                                                               \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "model and layout of the source")            \
    FIELD(wanted, U32, PROTO_TOKENS_MAX, OPEN, "as in RESERVED")                                   \
    FIELD(gate, U32, PROTO_ROWS_MAX, OPEN, "its gate in the source's book (actor_kv_book.h)")
#define PROTO_FIELDS_kv_part(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(part, U32, PROTO_ROWS_MAX, OPEN, "as in TRANSFER_PART")                                  \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "from 0, over all parts of the transfer")            \
    FIELD(layer_begin, U32, 65535, OPEN, "layers [layer_begin, layer_end) of the columns")         \
    FIELD(layer_end, U32, 65535, OPEN, "one past the last layer")                                  \
    FIELD(is_last, BOOL, 1, OPEN, "the transfer has nothing more")                                 \
    PROTO_FIELDS_runs(FIELD)
#define PROTO_FIELDS_kv_landed(FIELD)                                                              \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "of the KV_PART")                                    \
    FIELD(status, I64, 1000, OPEN, "proto_status_t")                                               \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "both values, where two do not match")
#define PROTO_FIELDS_kv_cancel(FIELD)                                                              \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(status, I64, 1000, OPEN, "why")                                                          \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "why, as a sentence")
#define PROTO_FIELDS_kv_cancelled(FIELD)                                                           \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key: nothing of it is sent or written now")
#define PROTO_FIELDS_kv_data(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "of the KV_PART")                                    \
    FIELD(offset_bytes, U64, UINT64_MAX, OPEN, "of these bytes within the piece")                  \
    FIELD(data, COL_U8, 1 << 24, PRIVATE, "cache content")

/* ---- executor or drafter to kv-transfer ------------------------------------------------------ */
/* Of one rank.  Fields in the order of actor_kv_layout.h; the parts of their rows field by field. A
 * kv-transfer passes it on to its peers, with where its bytes can be pulled and where its book is.
 */
#define PROTO_FIELDS_kv_arena(FIELD)                                                               \
    FIELD(region, U64, UINT64_MAX, OPEN, "names this arena within its node, never an address")     \
    FIELD(handle_kind, U32, 15, OPEN, "0 file of shared memory, 1 CUDA IPC")                       \
    FIELD(handle, BIN, 256, OPEN, "PID:FD:INODE:OFFSET of the file, or the IPC handle")            \
    FIELD(size_bytes, U64, UINT64_MAX, OPEN, "of the arena")                                       \
    FIELD(rank, U32, 255, OPEN, "tensor-parallel rank")                                            \
    FIELD(rank_count, U32, 255, OPEN, "tensor-parallel degree")                                    \
    FIELD(layer_count, U32, 65535, OPEN, "layers with a cache, a drafter's behind the target's")   \
    FIELD(fingerprint, STR, PROTO_TEXT_LEN_MAX, OPEN, "as in EXECUTOR_INFO")                       \
    FIELD(group_kinds, COL_U32, PROTO_GROUPS_MAX, OPEN, "as in EXECUTOR_INFO")                     \
    FIELD(group_granularities, COL_U32, PROTO_GROUPS_MAX, OPEN, "raw tokens of a block")           \
    FIELD(group_windows, COL_U32, PROTO_GROUPS_MAX, OPEN, "of a sliding group; else 0")            \
    FIELD(group_pages, COL_U32, PROTO_GROUPS_MAX, OPEN, "block ids are below it")                  \
    FIELD(field_layers, COL_U32, 8192, OPEN, "[fields] ascending")                                 \
    FIELD(field_names, COL_U8, 8192, OPEN, "[fields] what it holds")                               \
    FIELD(field_dtypes, COL_U8, 8192, OPEN, "[fields]")                                            \
    FIELD(field_groups, COL_U8, 8192, OPEN, "[fields] cache group")                                \
    FIELD(field_rows, COL_U32, 8192, OPEN, "[fields] rows of a block")                             \
    FIELD(field_offsets, COL_U64, 8192, OPEN, "[fields] of block 0 within the arena, bytes")       \
    FIELD(field_strides, COL_U64, 8192, OPEN, "[fields] from block to block, bytes")               \
    FIELD(field_parts, COL_U8, 8192, OPEN, "[fields] parts of a row")                              \
    FIELD(part_extents, COL_U32, 32768, OPEN, "[parts] units over all ranks")                      \
    FIELD(part_begins, COL_U32, 32768, OPEN, "[parts] the first one on this rank")                 \
    FIELD(part_counts, COL_U32, 32768, OPEN, "[parts] how many are on this rank")                  \
    FIELD(part_units, COL_U32, 32768, OPEN, "[parts] bytes of a unit in a row")                    \
    FIELD(ready_kind, U32, 15, OPEN, "0 KV_READY messages, 1 words in shared memory")              \
    FIELD(ready_handle, BIN, 256, OPEN, "of these words (proto_layers.h)")                         \
    FIELD(data_endpoint, STR, 255, OPEN, "between kv-transfers: where KV_PULL goes")               \
    FIELD(book_handle, BIN, 256, OPEN, "between kv-transfers: of its gates and generations")
#define PROTO_FIELDS_kv_ready(FIELD)                                                               \
    FIELD(region, U64, UINT64_MAX, OPEN, "the arena; a kv-transfer's own data thread says it too") \
    FIELD(step, U64, UINT64_MAX, OPEN, "the plan's step")                                          \
    FIELD(layer_count, U32, 65535, OPEN, "layers [0, layer_count) of it are written")

/* ---- the data lane, and a kv-transfer's data thread -------------------------------------------
 */
#define PROTO_FIELDS_kv_pull(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "of a KV_PART; answered KV_DATA ..., KV_END")        \
    FIELD(checksums, BOOL, 1, OPEN, "KV_END shall bring the sums of its blocks")
#define PROTO_FIELDS_kv_end(FIELD)                                                                 \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "as in KV_PULL")                                     \
    FIELD(status, I64, 1000, OPEN, "OK: the blocks were whole and of their generation until now")  \
    FIELD(size_bytes, U64, UINT64_MAX, OPEN, "of all KV_DATA of the piece")                        \
    FIELD(checksums, COL_U64, PROTO_BLOCKS_MAX, OPEN, "[blocks] or none")
#define PROTO_FIELDS_kv_gate(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(gate, U32, PROTO_ROWS_MAX, OPEN, "index in the book")                                    \
    FIELD(is_source, BOOL, 1, OPEN, "else what was asked for is dropped, and nothing more")        \
    FIELD(is_open, BOOL, 1, OPEN, "false: no copy of it may begin any more")
#define PROTO_FIELDS_kv_serve(FIELD)                                                               \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "of the KV_PART")                                    \
    FIELD(gate, U32, PROTO_ROWS_MAX, OPEN, "of the transfer")                                      \
    FIELD(peer, U32, 255, OPEN, "link of the destination")                                         \
    FIELD(layer_begin, U32, 65535, OPEN, "layers [layer_begin, layer_end)")                        \
    FIELD(layer_end, U32, 65535, OPEN, "one past the last layer")                                  \
    FIELD(groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "[blocks] cache group")                          \
    FIELD(blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[blocks] in it, in order of group, column")    \
    FIELD(generations, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[blocks]")
#define PROTO_FIELDS_kv_copy(FIELD)                                                                \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "of the KV_PART")                                    \
    FIELD(gate, U32, PROTO_ROWS_MAX, OPEN, "of the transfer, in the source's book")                \
    FIELD(peer, U32, 255, OPEN, "link of the source")                                              \
    FIELD(layer_begin, U32, 65535, OPEN, "layers [layer_begin, layer_end)")                        \
    FIELD(layer_end, U32, 65535, OPEN, "one past the last layer")                                  \
    FIELD(groups, COL_U8, PROTO_BLOCKS_MAX, OPEN, "[blocks] cache group")                          \
    FIELD(from_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[blocks] of the source")                  \
    FIELD(from_generations, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[blocks]")                           \
    FIELD(to_blocks, COL_U32, PROTO_BLOCKS_MAX, OPEN, "[blocks] of ours")
#define PROTO_FIELDS_kv_copied(FIELD)                                                              \
    FIELD(transfer, U64, UINT64_MAX, OPEN, "transfer key")                                         \
    FIELD(piece, U32, PROTO_TOKENS_MAX, OPEN, "of the KV_COPY")                                    \
    FIELD(status, I64, 1000, OPEN, "proto_status_t; not OK: no byte of it counts")                 \
    FIELD(size_bytes, U64, UINT64_MAX, OPEN, "that were written")                                  \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "what was wrong, with both values")
#define PROTO_FIELDS_kv_watch(FIELD)                                                               \
    FIELD(steps, COL_U64, 64, OPEN, "ascending; what is not in it is not awaited any more")

/* ---- what a node has ------------------------------------------------------------------------- */
#define PROTO_FIELDS_pages(FIELD)                                                                  \
    FIELD(serial, U64, UINT64_MAX, OPEN, "counts these messages; a gap: forget what was known")    \
    FIELD(forget, BOOL, 1, OPEN, "forget all that came before")                                    \
    FIELD(added, COL_U64, 4096, OPEN, "first 8 bytes of the hashes of pages that came, LE")        \
    FIELD(dropped, COL_U64, 4096, OPEN, "the same of pages that went")
#define PROTO_FIELDS_node_state(FIELD)                                                             \
    FIELD(prefill_count, U32, 255, OPEN, "prefill nodes that could serve now")                     \
    FIELD(transfer_count, U32, 1 << 20, OPEN, "transfers that are open")                           \
    FIELD(block_count, U32, PROTO_BLOCKS_MAX, OPEN, "blocks held, incoming or fencing")            \
    FIELD(draining, BOOL, 1, OPEN, "takes nothing new")                                            \
    FIELD(detail, STR, PROTO_TEXT_LEN_MAX, OPEN, "what is missing; empty: nothing")

#endif

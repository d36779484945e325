#include "actor_conform_rules.h"

#include "proto_require.h"

static const conform_rule_text_t rules[] = {
#define CONFORM_RULE_ROW(id, name, section, text) {name, section, text},
    ACTOR_CONFORM_RULE_LIST(CONFORM_RULE_ROW)
#undef CONFORM_RULE_ROW
};

_Static_assert(sizeof rules / sizeof rules[0] == CONFORM_RULE_COUNT, "one row a rule");

const conform_rule_text_t *
actor_conform_rule(conform_rule_t rule)
{
    require(rule < CONFORM_RULE_COUNT);
    return &rules[rule];
}

conform_rule_t
actor_conform_rule_of_plan(proto_plan_rule_t rule)
{
    switch (rule) {
    case PROTO_RULE_STALE:
        return CONFORM_PLAN_STALE;
    case PROTO_RULE_SLOT_RANGE:
        return CONFORM_PLAN_SLOT_RANGE;
    case PROTO_RULE_SLOT_EMPTY:
        return CONFORM_PLAN_SLOT_EMPTY;
    case PROTO_RULE_SLOT_TWICE:
        return CONFORM_PLAN_SLOT_TWICE;
    case PROTO_RULE_GROUP_RANGE:
        return CONFORM_PLAN_GROUP_RANGE;
    case PROTO_RULE_COLUMN_RANGE:
        return CONFORM_PLAN_COLUMN_RANGE;
    case PROTO_RULE_BLOCK_RANGE:
        return CONFORM_PLAN_BLOCK_RANGE;
    case PROTO_RULE_COLUMN_MISSING:
        return CONFORM_PLAN_COLUMN_MISSING;
    case PROTO_RULE_WRITE_SHARED:
        return CONFORM_PLAN_WRITE_SHARED;
    case PROTO_RULE_TOKEN_RANGE:
        return CONFORM_PLAN_TOKEN_RANGE;
    case PROTO_RULE_LENGTH_LIMIT:
        return CONFORM_PLAN_LENGTH_LIMIT;
    case PROTO_RULE_BUDGET:
        return CONFORM_PLAN_BUDGET;
    case PROTO_RULE_WIDTH:
        return CONFORM_PLAN_WIDTH;
    case PROTO_RULE_SHAPE:
    case PROTO_RULE_NONE:
        break;
    }
    return CONFORM_PLAN_SHAPE;
}

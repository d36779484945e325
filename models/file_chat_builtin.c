/* The built-in chat templates, and how a checkpoint's Jinja text is recognised as one of them. */
#include <stdlib.h>

#include "file_chat_form.h"
#include "proto_require.h"

#define CHATML                                                                                     \
    "other: <|im_start|>{role}\\n{content}<|im_end|>\\n\ngeneration: <|im_start|>assistant\\n\n"
/* Qwen refuses nothing, but leaves out roles it does not know: here they are an error. */
#define QWEN                                                                                       \
    "system: <|im_start|>system\\n{content}<|im_end|>\\n\n"                                        \
    "user: <|im_start|>user\\n{content}<|im_end|>\\n\n"                                            \
    "assistant: <|im_start|>assistant\\n{content}<|im_end|>\\n\n"                                  \
    "generation: <|im_start|>assistant\\n\n"
#define LLAMA3                                                                                     \
    "start: {bos}\n"                                                                               \
    "other: <|start_header_id|>{role}<|end_header_id|>\\n\\n{content}<|eot_id|>\n"                 \
    "generation: <|start_header_id|>assistant<|end_header_id|>\\n\\n\ntrim: yes\n"

static const struct {
    const char *name;
    const char *form;
} BUILTINS[] = {
    {"smollm2", CHATML "default_system: You are a helpful AI assistant named SmolLM, trained by "
                       "Hugging Face\n"},
    {"chatml", CHATML},
    {"qwen2", CHATML "default_system: You are a helpful assistant.\n"},
    {"qwen2.5", QWEN "default_system: You are Qwen, created by Alibaba Cloud. You are a helpful "
                     "assistant.\n"},
    {"qwen3", QWEN "think: qwen3\n"},
    {"llama3", LLAMA3},
    {"llama3.1", LLAMA3 "system: <|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge "
                        "Date: December 2023\\nToday Date: 26 Jul 2024\\n\\n{content}<|eot_id|>\n"
                        "default_system: \n"},
    {"llama2", "user: {bos}[INST] {content} [/INST]\nassistant:  {content} {eos}\ngeneration: \n"
               "system_in_user: <<SYS>>\\n{content}\\n<</SYS>>\\n\\n\ntrim: yes\nalternate: yes\n"},
    {"mistral", "start: {bos}\nuser: [INST] {content} [/INST]\nassistant: {content}{eos} \n"
                "generation: \nalternate: yes\n"},
    {"zephyr", "system: <|system|>\\n{content}{eos}\\n\nuser: <|user|>\\n{content}{eos}\\n\n"
               "assistant: <|assistant|>\\n{content}{eos}\\n\ngeneration: <|assistant|>\\n\n"},
    {"gemma", "start: {bos}\nuser: <start_of_turn>user\\n{content}<end_of_turn>\\n\n"
              "assistant: <start_of_turn>model\\n{content}<end_of_turn>\\n\n"
              "generation: <start_of_turn>model\\n\ntrim: yes\nalternate: yes\n"},
};

const char *
file_chat_builtin(const char *name)
{
    for (size_t i = 0; i < sizeof BUILTINS / sizeof BUILTINS[0]; i++) {
        if (strcmp(BUILTINS[i].name, name) == 0) {
            return BUILTINS[i].form;
        }
    }
    return NULL;
}

const char *
file_chat_template_names(void)
{
    return "smollm2, chatml, qwen2, qwen2.5, qwen3, llama3, llama3.1, llama2, mistral, zephyr, "
           "gemma";
}

/* Normalised Jinja: no white space and no "\n" escapes, ' for ", .x for ['x'], no trim marks.
 * What decides is then the order of roles, contents and markers. */
#define CHATML_LOOP                                                                                \
    "{{'<|im_start|>'+message.role+''+message.content+'<|im_end|>'+''}}{%endfor%}"                 \
    "{%ifadd_generation_prompt%}{{'<|im_start|>assistant'}}{%endif%}"
#define CHATML_FIRST(system)                                                                       \
    "{%formessageinmessages%}{%ifloop.firstandmessages[0].role!='system'%}{{'<|im_start|>"         \
    "system" system "<|im_end|>'}}{%endif%}"
#define ALTERNATE                                                                                  \
    "{%if(message.role=='user')!=(loop.index0%2==0)%}{{raise_exception('Conversationrolesmust"     \
    "alternateuser/assistant/user/assistant/...')}}{%endif%}"

enum { MARKERS_MAX = 6 };

typedef struct {
    const char *name;
    const char *exact;              /* the whole text, or NULL */
    const char *has[MARKERS_MAX];   /* all of these */
    const char *lacks[MARKERS_MAX]; /* none of these */
} rule_t;

static const rule_t RULES[] = {
    {.name = "smollm2",
     .exact =
         CHATML_FIRST("YouareahelpfulAIassistantnamedSmolLM,trainedbyHuggingFace") CHATML_LOOP},
    {.name = "qwen2", .exact = CHATML_FIRST("Youareahelpfulassistant.") CHATML_LOOP},
    {.name = "chatml", .exact = "{%formessageinmessages%}" CHATML_LOOP},
    {.name = "qwen2.5",
     .has =
         {"<|im_start|>systemYouareQwen,createdbyAlibabaCloud.Youareahelpfulassistant.<|im_end|>",
          "{{'<|im_start|>system'+messages[0].content+'<|im_end|>'}}", "<tool_response>",
          "{%ifadd_generation_prompt%}{{'<|im_start|>assistant'}}{%endif%}"},
     .lacks = {"think", "|trim"}},
    {.name = "qwen3",
     .has = {"{{'<|im_start|>system'+messages[0].content+'<|im_end|>'}}", "ns.last_query_index",
             "'</think>'incontent", "loop.index0>ns.last_query_index",
             ("{%ifadd_generation_prompt%}{{'<|im_start|>assistant'}}"
              "{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}")},
     .lacks = {"render_content", "|trim"}},
    {.name = "qwen3",
     .has = {"{{'<|im_start|>system'+messages[0].content+'<|im_end|>'}}", "ns.last_query_index",
             "'</think>'inmessage.content", "loop.index0>ns.last_query_index",
             ("{%ifadd_generation_prompt%}{{'<|im_start|>assistant'}}"
              "{%ifenable_thinkingisdefinedandenable_thinkingisfalse%}")},
     .lacks = {"render_content", "|trim"}},
    {.name = "llama3",
     .exact = "{%setloop_messages=messages%}{%formessageinloop_messages%}{%setcontent="
              "'<|start_header_id|>'+message.role+'<|end_header_id|>'+message.content|trim+"
              "'<|eot_id|>'%}{%ifloop.index0==0%}{%setcontent=bos_token+content%}{%endif%}"
              "{{content}}{%endfor%}{%ifadd_generation_prompt%}{{'<|start_header_id|>assistant"
              "<|end_header_id|>'}}{%endif%}"},
    {.name = "llama3.1",
     .has = {"{{bos_token}}", "{{'CuttingKnowledgeDate:December2023'}}",
             "{{'TodayDate:'+date_string+''}}", "date_string='26Jul2024'",
             ("{{'<|start_header_id|>'+message.role+'<|end_header_id|>'+message.content|trim+"
              "'<|eot_id|>'}}"),
             "{%ifadd_generation_prompt%}{{'<|start_header_id|>assistant<|end_header_id|>'}}"},
     .lacks = {"think", "ReasoningMode"}},
    {.name = "llama2",
     .exact =
         "{%ifmessages[0].role=='system'%}{%setloop_messages=messages[1:]%}{%setsystem_message="
         "messages[0].content%}{%else%}{%setloop_messages=messages%}{%setsystem_message=false%}"
         "{%endif%}{%formessageinloop_messages%}" ALTERNATE
         "{%ifloop.index0==0andsystem_message!=false%}{%setcontent='<<SYS>>'+system_message+"
         "'<</SYS>>'+message.content%}{%else%}{%setcontent=message.content%}{%endif%}"
         "{%ifmessage.role=='user'%}{{bos_token+'[INST]'+content.strip()+'[/INST]'}}"
         "{%elifmessage.role=='assistant'%}{{''+content.strip()+''+eos_token}}{%endif%}{%endfor%}"},
    {.name = "mistral",
     .exact = "{{bos_token}}{%formessageinmessages%}" ALTERNATE
              "{%ifmessage.role=='user'%}{{'[INST]'+message.content+'[/INST]'}}"
              "{%elifmessage.role=='assistant'%}{{message.content+eos_token+''}}"
              "{%else%}{{raise_exception('Onlyuserandassistantrolesaresupported!')}}{%endif%}"
              "{%endfor%}"},
    {.name = "zephyr",
     .exact = "{%formessageinmessages%}{%ifmessage.role=='user'%}{{'<|user|>'+message.content+"
              "eos_token}}{%elifmessage.role=='system'%}{{'<|system|>'+message.content+eos_token}}"
              "{%elifmessage.role=='assistant'%}{{'<|assistant|>'+message.content+eos_token}}"
              "{%endif%}{%ifloop.lastandadd_generation_prompt%}{{'<|assistant|>'}}{%endif%}"
              "{%endfor%}"},
    {.name = "gemma",
     .exact = "{{bos_token}}{%ifmessages[0].role=='system'%}{{raise_exception('Systemrolenot"
              "supported')}}{%endif%}{%formessageinmessages%}" ALTERNATE
              "{%if(message.role=='assistant')%}{%setrole='model'%}{%else%}{%setrole=message.role%}"
              "{%endif%}{{'<start_of_turn>'+role+''+message.content|trim+'<end_of_turn>'}}"
              "{%endfor%}{%ifadd_generation_prompt%}{{'<start_of_turn>model'}}{%endif%}"},
};

static bool
is_blank(char byte)
{
    return byte == ' ' || byte == '\n' || byte == '\t' || byte == '\r';
}

/* Writes the normalised text, terminated: it is never longer than the original. */
static void
normalise(const char *jinja, size_t size_bytes, char *out)
{
    size_t written = 0;
    for (size_t at = 0; at < size_bytes; at++) {
        char byte = jinja[at] == '"' ? '\'' : jinja[at];
        char next = at + 1 < size_bytes ? jinja[at + 1] : ' ';
        if (is_blank(byte)) {
            continue;
        }
        if (byte == '\\' && next == 'n') {
            at++;
            continue;
        }
        bool opens = written >= 2 && out[written - 2] == '{' &&
                     (out[written - 1] == '{' || out[written - 1] == '%');
        bool closes = next == '}' || next == '%';
        if (byte == '-' && (opens || closes)) {
            continue;
        }
        if (byte == '\'' && written > 0 && out[written - 1] == '[') {
            out[written - 1] = '.'; /* ['x'] */
            continue;
        }
        if (byte == '\'' && next == ']') {
            at++;
            continue;
        }
        out[written++] = byte;
    }
    out[written] = '\0';
}

static bool
rule_fits(const rule_t *rule, const char *text)
{
    if (rule->exact != NULL) {
        return strcmp(rule->exact, text) == 0;
    }
    for (size_t i = 0; i < MARKERS_MAX && rule->has[i] != NULL; i++) {
        if (strstr(text, rule->has[i]) == NULL) {
            return false;
        }
    }
    for (size_t i = 0; i < MARKERS_MAX && rule->lacks[i] != NULL; i++) {
        if (strstr(text, rule->lacks[i]) != NULL) {
            return false;
        }
    }
    return true;
}

const char *
file_chat_recognise(const char *jinja, size_t size_bytes)
{
    char *text = size_bytes <= FILE_CHAT_TEMPLATE_SIZE_BYTES_MAX ? malloc(size_bytes + 1) : NULL;
    if (text == NULL) {
        return NULL;
    }
    normalise(jinja, size_bytes, text);
    const char *name = NULL;
    for (size_t i = 0; name == NULL && i < sizeof RULES / sizeof RULES[0]; i++) {
        if (rule_fits(&RULES[i], text)) {
            name = RULES[i].name;
        }
    }
    free(text);
    return name;
}

"""What a drafter is trained on: the target's own words, so no corpus is needed.

Two sources.  Half of the sequences begin with a question put together from the lists below; the
other half with the opening of a user's turn, whose question the target makes up itself.  The answers
are the target's: greedy for half of the rows, drawn at temperature 0.8 for the others.  None of the
prompts of bench/spec is put together here: their topics are not in these lists.
"""
import random

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

TOPICS = (
    "the water cycle, a steam engine, the moon's phases, bread baking, the Roman roads, a bicycle gear, "
    "photosynthesis, the printing press, a savings account, the human heart, sign language, coral reefs, "
    "the violin, a compass, volcanoes, electric motors, vaccines, the Silk Road, chess openings, composting, "
    "glaciers, a telescope, tea ceremonies, inflation, whale songs, bridges, the alphabet, rainbows, maps, "
    "a refrigerator, ants, jazz, the tides, recycling glass, a solar panel, kites, earthquakes, dreams, "
    "public libraries, honey, the marathon, lighthouses at sea, a hot-air balloon, migration of birds, "
    "ceramics, the stock market, spices, muscle memory, deserts, a wind turbine, mushrooms, weaving, "
    "insulin, the metric system, paper making, owls, the Renaissance, batteries, olive oil, snow"
).split(", ")
KINDS = (
    "Explain {t} to a ten-year-old.", "What are three facts about {t}?", "Write a short story about {t}.",
    "List five questions a student might ask about {t}.", "Write a poem of eight lines about {t}.",
    "What is the history of {t}?", "Give me a step-by-step guide to learning about {t}.",
    "Write an email to a friend that tells of {t}.", "Compare {t} with {u}.",
    "Summarise what is known of {t} in two sentences, then in one.", "Why does {t} matter today?",
    "Write a dialogue between two people who disagree about {t}.", "What would the world be without {t}?",
    "Make a table with columns name, use and origin for {t} and {u}.",
    "Write a news headline and a paragraph about {t}.", "Name the advantages and disadvantages of {t}.",
)
CODE = (
    "Write a Python function that {c}.", "Write a C function that {c}.", "Write a JavaScript function that {c}.",
    "Explain how one would write a program that {c}.", "Write unit tests for a function that {c}.",
)
TASKS = (
    "reverses a list, counts the vowels of a string, checks whether a number is prime, merges two sorted arrays, "
    "finds the longest word of a text, computes a factorial, removes duplicates from a list, rotates a matrix, "
    "parses a date, flattens a nested list, counts words, finds the second largest number, sums the digits of a "
    "number, converts Celsius to Fahrenheit, validates a password, sorts a dictionary by value, computes the mean "
    "and the median, finds common elements of two lists, checks whether brackets are balanced, reads a CSV file"
).split(", ")


def tokenizer(keys):
    """The byte-level BPE of the GGUF, with single digits as SmolLM2 splits them."""
    tokens, merges = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.merges"]
    made = Tokenizer(BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
    made.pre_tokenizer = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    made.decoder = ByteLevelDecoder()
    made.add_special_tokens([t for t, kind in zip(tokens, keys["tokenizer.ggml.token_type"]) if kind == 3])
    return made


def chat(question):
    return (f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
            "<|im_start|>assistant\n")


def questions(count, seed):
    draw = random.Random(seed)
    for _ in range(count):
        if draw.random() < 0.25:
            yield draw.choice(CODE).format(c=draw.choice(TASKS))
        else:
            first, second = draw.sample(TOPICS, 2)
            yield draw.choice(KINDS).format(t=first, u=second)


def sequences(target, count, length, seed, batch=512):
    """Yields [rows, length] of tokens, `count` rows in all, in batches of prompts of one length."""
    words = tokenizer(target.keys)
    stop = words.token_to_id("<|im_end|>")
    generator = torch.Generator(target.device).manual_seed(seed)
    opening = words.encode(f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n").ids
    answer = words.encode("<|im_end|>\n<|im_start|>assistant\n").ids

    def run(prompts, temperature):
        heat = torch.full((len(prompts),), temperature, device=target.device)
        rows = torch.tensor(prompts, device=target.device)
        return target.generate(rows, length - rows.shape[1], heat, stop, generator)

    asked = [words.encode(chat(q)).ids for q in questions(count // 2, seed)]
    by_length = {}
    for ids in asked:
        by_length.setdefault(len(ids), []).append(ids)
    for same in by_length.values():
        for at in range(0, len(same), batch):
            part = same[at : at + batch]
            middle = (len(part) + 1) // 2
            for piece, heat in ((part[:middle], 0.0), (part[middle:], 0.8)):
                if piece:
                    yield run(piece, heat)
    made, left = {}, count - count // 2
    while left > 0:  # the target asks, 48 tokens at most, and then answers
        asks = target.generate(torch.tensor([opening] * batch, device=target.device), 48,
                               torch.ones(batch, device=target.device), stop, generator)[:, len(opening):]
        for row in asks.tolist():
            if stop in row and row.index(stop) > 3:
                ids = opening + row[: row.index(stop)] + answer
                made.setdefault(len(ids), []).append(ids)
        for size in [s for s, rows in made.items() if len(rows) >= batch // 8]:
            part = made.pop(size)
            left -= len(part)
            middle = len(part) // 2
            yield run(part[:middle], 0.0)
            yield run(part[middle:], 0.8)

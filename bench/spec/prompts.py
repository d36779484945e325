"""100 prompts of ten kinds, made from parts that no drafter was trained or tuned on."""

PLACES = ("the harbour of Lindvik", "a tea house in Arashi", "the old mill at Corran", "a night market in Tuvel",
          "the botanical garden of Messing", "a railway yard near Olden", "the salt works of Perrin",
          "an observatory above Caldera", "the ferry pier at Hollow Bay", "a clockmaker's shop in Varna Street")
NAMES = ("Mira", "Tobias", "Ilse", "Ravi", "Odile", "Kenji", "Petra", "Amadou", "Linnea", "Bastien")
THINGS = ("copper kettle", "paper lantern", "brass compass", "wooden flute", "glass marble", "linen map",
          "iron key", "silver thimble", "clay whistle", "leather journal")
TOPICS = ("why leaves change colour", "how a sluice gate works", "what yeast does in dough", "why ships float",
          "how a sundial is read", "what causes tides", "how glass is made", "why bread goes stale",
          "how a loom weaves cloth", "what makes a violin loud")
FIELDS = ("id", "owner", "price", "colour", "weight", "origin", "status", "created", "shelf", "label")
FUNCTIONS = ("counts the vowels of a string", "returns the largest gap in a sorted list",
             "reverses the words of a sentence", "checks whether brackets are balanced",
             "merges two sorted lists", "returns the median of a list", "rounds every number of a list",
             "finds the first repeated character", "splits a list into chunks", "computes a running mean")


def paragraph(at):
    name, place, thing = NAMES[at], PLACES[at], THINGS[at]
    return (f"{name} came to {place} before sunrise with a {thing} in a canvas bag. Nobody had asked for the "
            f"{thing}, yet everybody wanted to see it. By noon {name} had shown the {thing} to eleven people, and "
            f"each of them told a different story about where the {thing} had come from.")


def record(at):
    return "\n".join(f'{{"{FIELDS[k]}": "{THINGS[(at + k) % 10]} {k}", "{FIELDS[(k + 1) % 10]}": {at * 10 + k}}}'
                     for k in range(6))


def source(at):
    def function(k):
        field = FIELDS[(at + k) % 10]
        return (f"def step_{k}(state):\n    value = state['{field}']\n"
                f"    state['{field}'] = value + {k + at}\n    return state\n")

    return "\n".join(function(k) for k in range(3))


KINDS = {
    "repeat": lambda at: "Repeat the following text word for word.\n\n" + paragraph(at),
    "edit": lambda at: f"Rewrite this text, but call the person {NAMES[(at + 3) % 10]}. Change nothing else.\n\n"
                       + paragraph(at),
    "extract": lambda at: "Copy the first sentence of this text, then the last one.\n\n" + paragraph(at),
    "json": lambda at: "Write these records as one JSON array, unchanged.\n\n" + record(at),
    "code-copy": lambda at: "Print this Python code again with a comment above each function.\n\n" + source(at),
    "code": lambda at: f"Write a Python function that {FUNCTIONS[at]}. Include an example.",
    "summary": lambda at: "Summarise this text in two sentences.\n\n" + paragraph(at),
    "explain": lambda at: f"Explain to a child {TOPICS[at]}.",
    "story": lambda at: f"Tell a short story about {NAMES[at]} and a {THINGS[at]} at {PLACES[at]}.",
    "list": lambda at: f"List eight things that one could sell at {PLACES[at]}.",
}


def prompts(of_each):
    """(kind, prompt), the kinds in turn."""
    return [(kind, make(at)) for at in range(of_each) for kind, make in KINDS.items()]

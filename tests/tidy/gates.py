"""The grep gates of the specification ("Regression gates"), in the names of this code.

`findings(source, walk, read)` yields (file, line, what).  tests/tidy/canary.py plants a violation of
each one; docs/decode-path.md says which gate of the specification each stands for.
"""
import re

# (pattern, folders, why).  Comments are not searched: they may speak of what is not there.
PATTERNS = [
    # One decode path.
    (r"init_forward_metadata_replay|capture_metadata_replay|is_all_greedy|all_greedy|any_greedy",
     ("gpu", "kernels"), "one decode path, one sampling route: no third arm, no greedy branch"),
    # Step 0's accepted prefix is published by the drafter, never computed in a model.
    (r"accept_lengths|draft_seq_lens|apply_correction", ("gpu/model",),
     "accepted lengths are the drafter's and the sampler's, no model reads them"),
    # What layers share for a forward is a backend's scratch.
    (r"\bdsa_\w+|swa_slot_mapping|compressor_slot_cache|sparse_topk|slot_mappings",
     ("gpu/model", "gpu/run"), "selections and slot mappings are backend scratch"),
    # Tables are always delivered whole, so there is nothing to ask a backend about them.
    (r"select_out_cache_loc|page_staging|tables_self_padding|active_pages_must_be_real|"
     r"engine_owned_group_ids|uses_cache_groups|needs_group_block_tables|table_tail_pad", ("gpu",),
     "write locations have one accessor and tables no capability flags"),
    (r"\bcache_groups_bound\b|\bcontract_bound\b", ("gpu",),
     "tables are bound whenever they are delivered, never behind a latch of the extend path"),
    # Write locations have one owner.
    (r"\bout_cache_loc\b", ("gpu", "kernels"), "locations come from backend_write_locations()"),
    (r"router_stacks_|router_cache_group_table|kern_(decode|extend)_locations",
     ("gpu/model", "gpu/run", "gpu/sample"), "only the router computes locations"),
    (r"\bpage_table\b|\bkernel_page", ("gpu/model", "gpu/run", "gpu/sample"),
     "kernel pages stay behind the router"),
    (r"backend_tables_t|\bblock_table", ("gpu/model", "gpu/sample"),
     "models and sampling see no block tables"),
    (r"backend_table_t|\bblock_table", ("gpu/backend/paged/backend_",),
     "a leaf sees one page table, no groups"),
    # What a backend cannot capture is declared by the backend.
    (r"FILE_ARCH_", ("gpu/run", "gpu/backend", "gpu/sample"),
     "support is declared by nodes, not looked up by architecture"),
]

# Nodes that may override the inherited capture, each for the reason that the specification names.
CAPTURE_OVERRIDES = {
    "gpu/backend/paged/router_cache_group.c": "reaches the hooks of its leaves",
    "gpu/backend/state/backend_gdn.c": "warm-up needs the arange of query starts",
    "gpu/backend/hybrid/backend_hybrid.c": "fans out to its children",
}

# Inputs that are filled at one place with every field named.
BUNDLES = {"backend_refresh_t": "gpu/backend/backend_base.h",
           "backend_extend_t": "gpu/backend/backend_base.h"}

# write_locations in a model: the accessor, and the operation that it feeds.
LOCATIONS = re.compile(r"\bwrite_locations\b")
LOCATIONS_ALLOWED = re.compile(r"\.write_locations = backend_write_locations\(|"
                               r"\bbackend_write_locations\(")


def strip_comments(text):
    return re.sub(r"/\*.*?\*/", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.S)


def line_at(text, offset):
    return text.count("\n", 0, offset) + 1


def fields_of(text, name):
    """The fields of `typedef struct { ... } name;`."""
    match = re.search(r"typedef struct \{([^{}]*)\}\s*" + name + r"\s*;", text)
    if match is None:
        return None
    return re.findall(r"(\w+)(?:\[[^\]]*\])?\s*;", match.group(1))


def initialisers(text, name):
    """(offset, body) of every braced initialiser of a variable or literal of the type."""
    for match in re.finditer(r"\b" + name + r"\b(?:\s+\w+\s*=\s*|\))\s*\{", text):
        depth, at = 1, match.end()
        while depth and at < len(text):
            depth += {"{": 1, "}": -1}.get(text[at], 0)
            at += 1
        yield match.start(), text[match.end():at - 1]


def bundle_findings(files):
    for name, header in BUNDLES.items():
        if header not in files:
            continue
        fields = fields_of(files[header], name)
        if fields is None:
            yield header, 1, f"{name} is not declared as the gate expects"
            continue
        for relative, text in files.items():
            if not relative.startswith("gpu/"):
                continue
            for offset, body in initialisers(text, name):
                named = set(re.findall(r"\.(\w+)\s*=", body))
                for field in fields:
                    if field not in named:
                        yield (relative, line_at(text, offset),
                               f"{name} is filled without .{field}: there are no defaults")


def capture_findings(files):
    for relative, text in files.items():
        if not relative.startswith("gpu/"):
            continue
        for match in re.finditer(r"\.capture_forward_metadata\s*=(?!\s*NULL\b)", text):
            if relative not in CAPTURE_OVERRIDES:
                yield (relative, line_at(text, match.start()),
                       "capture is inherited; an override names its kernel's asymmetry in "
                       "tests/tidy/gates.py")


def location_findings(files):
    for relative, text in files.items():
        if not relative.startswith("gpu/model/"):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            if LOCATIONS.search(line) and not LOCATIONS_ALLOWED.search(line):
                yield (relative, number,
                       "a model fetches write locations right before the write and keeps none")


def findings(source, walk, read):
    files = {}
    for relative, path in walk(source, (".c", ".h", ".cu", ".cuh"), ("gpu", "kernels")):
        files[relative] = strip_comments("\n".join(read(path)))
    for pattern, folders, why in PATTERNS:
        for relative, text in files.items():
            if not relative.startswith(tuple(f if f.endswith("_") else f + "/" for f in folders)):
                continue
            for match in re.finditer(pattern, text):
                yield relative, line_at(text, match.start()), f"{why}: {match.group(0)}"
    yield from bundle_findings(files)
    yield from capture_findings(files)
    yield from location_findings(files)

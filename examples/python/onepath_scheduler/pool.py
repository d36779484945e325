"""The blocks of one executor: who is free, and which group a parent is bound to.

A parent block is bound to one cache group while a block of it is used, and then offers `packing`
blocks of that group: block 1 + (parent - 1) * packing + place.  Parent 0 and block 0 are the null
block, never owned.  Pure bookkeeping.
"""


class BlockPool:
    def __init__(self, parent_count, packings):
        self.packings = list(packings)
        self.parent_count = parent_count - 1  # usable ones
        self.free_parents = list(range(parent_count - 1, 0, -1))
        # Group by group: parents with free blocks, and these blocks.
        self.open = [{} for _ in self.packings]
        self.open_count = [0 for _ in self.packings]

    def block_count(self, group):
        """Usable blocks, if the group had every parent."""
        return self.parent_count * self.packings[group]

    def free_count(self, group):
        return self.open_count[group] + len(self.free_parents) * self.packings[group]

    def parents_needed(self, counts):
        """Whole parents for so many blocks of each group, from nothing."""
        return sum(-(-count // packing) for count, packing in zip(counts, self.packings))

    def fits(self, counts, reserve=0):
        """Whether so many blocks of each group are free together, with `reserve` parents left."""
        parents = reserve
        for group, count in enumerate(counts):
            if count > self.open_count[group]:
                parents += -(-(count - self.open_count[group]) // self.packings[group])
        return parents <= len(self.free_parents)

    def take(self, group, count):
        """`count` blocks; the caller knows that they fit."""
        packing = self.packings[group]
        if packing == 1:  # a parent is a block
            taken = self.free_parents[-count:] if count else []
            del self.free_parents[len(self.free_parents) - count:]
            taken.reverse()
            return taken
        taken, partly = [], self.open[group]
        while len(taken) < count:
            if not partly:
                parent = self.free_parents.pop()
                first = 1 + (parent - 1) * packing
                partly[parent] = list(range(first + packing - 1, first - 1, -1))
                self.open_count[group] += packing
            parent, blocks = next(iter(partly.items()))
            taken.append(blocks.pop())
            self.open_count[group] -= 1
            if not blocks:
                del partly[parent]
        return taken

    def give(self, group, blocks):
        """Gives blocks back; a parent whose blocks are all free is bound no longer."""
        packing = self.packings[group]
        if packing == 1:
            self.free_parents.extend(blocks)
            return
        partly = self.open[group]
        for block in blocks:
            parent = 1 + (block - 1) // packing
            places = partly.setdefault(parent, [])
            places.append(block)
            self.open_count[group] += 1
            if len(places) == packing:
                del partly[parent]
                self.open_count[group] -= packing
                self.free_parents.append(parent)

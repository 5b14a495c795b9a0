package ring

import "slices"

// remembered is how many nodes a walk over a large ring visits in the ring's
// order.
const remembered = 32

// A Walk visits the nodes of a ring in the order in which it prefers them for
// a key: clockwise from the key, each node once. It allocates nothing. In a
// ring of more than 64 nodes, those after the 32nd come in the order of their
// indices, beginning after the key's owner: nobody walks that far but to take
// whichever is left.
type Walk struct {
	ring    *Ring
	at      int // position in ring.points
	yielded int

	small   uint64 // visited, in a ring of up to 64 nodes
	visited [remembered]int32
	rest    int // the index after the last one visited in order of indices
}

// Walk starts a walk at the owner of the key with this hash.
func (r *Ring) Walk(hash uint64) Walk {
	w := Walk{ring: r}
	if len(r.points) != 0 {
		w.at = r.find(place(hash))
	}
	return w
}

// Next returns the index of the next node. ok is false when all nodes have
// been visited.
func (w *Walk) Next() (node int, ok bool) {
	n := len(w.ring.members)
	if w.yielded == n {
		return 0, false
	}
	switch {
	case n <= 64:
		node = w.clockwise(func(i int) bool { return w.small&(1<<i) != 0 })
		w.small |= 1 << node
	case w.yielded < remembered:
		seen := w.visited[:w.yielded]
		node = w.clockwise(func(i int) bool { return slices.Contains(seen, int32(i)) })
		w.visited[w.yielded] = int32(node)
		w.rest = int(w.visited[0]) + 1
	default:
		node = w.rest % n
		for slices.Contains(w.visited[:], int32(node)) {
			node = (node + 1) % n
		}
		w.rest = node + 1
	}
	w.yielded++
	return node, true
}

// clockwise returns the next node that was not visited.
func (w *Walk) clockwise(visited func(int) bool) int {
	for {
		node := int(w.ring.points[w.at] & nodeMask)
		if w.at++; w.at >= len(w.ring.points)-lookahead {
			w.at = 0
		}
		if !visited(node) {
			return node
		}
	}
}

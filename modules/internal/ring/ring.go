// Package ring is a consistent hash ring: each key has an owner among a set
// of nodes, and a change of one node moves only the keys that it gains or
// loses (Karger et al., Consistent Hashing and Random Trees, 1997).
//
// Each node stands at many points of the ring; a key belongs to the node at
// the first point at or after it. A node of unit weight has 512 points in a
// ring of any size: they keep shares within some 4 % (one standard deviation,
// 1/√512) of even, and a number that depended on the size of the ring would
// move half of all keys at the size where it changes.
package ring

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/cespare/xxhash/v2"
)

const (
	// unit is the number of points per unit of weight.
	unit = 512

	// maxPoints bounds the points of one node. Where the greatest weight
	// would exceed it, all nodes have fewer, in proportion.
	maxPoints = 1 << 14

	// A point is its place on the ring in the upper 44 bits and the index
	// of its node in the lower 20. So points sort by place, and those at
	// the same place by node.
	nodeBits = 20
	nodeMask = 1<<nodeBits - 1

	// lookahead is how many points a look-up compares at a time.
	lookahead = 4
)

// A Node takes part in a ring.
type Node struct {
	// ID alone decides where the node's points are.
	ID string

	// Weight is the node's share of the keys relative to the others',
	// 1 to 100. Weights are divided by their greatest common divisor.
	Weight int
}

// A Ring is immutable and safe for concurrent use. It depends on the IDs and
// weights of its nodes only: every gateway that knows the same nodes has the
// same ring. The zero Ring has no nodes.
type Ring struct {
	members []member
	points  []uint64 // sorted, then lookahead stand-ins for the first, beyond all places

	// index holds, for each value of a place's upper bits, the position of
	// the first point that has them, or comes later.
	index []uint32
	shift uint // index[place>>shift]
}

type member struct {
	id     string
	points int
}

// New returns the ring of nodes, which are sorted by ID and have no ID twice.
// There are at most 2^20 of them. If prev, an older ring, has most of the
// nodes, the ring is built from its points, which is faster; prev may be nil.
func New(nodes []Node, prev *Ring) *Ring {
	r := &Ring{members: members(nodes)}
	total := 0
	for _, m := range r.members {
		total += m.points
	}
	if total == 0 {
		return r
	}
	// On average two points per entry of the index: a look-up then reads
	// one cache line of each, and the index is an eighth of the points.
	indexBits := max(bits.Len(uint(total))-2, 0)
	r.shift = uint(64 - indexBits)
	r.index = make([]uint32, 1<<indexBits+1)
	if kept, renumber := r.kept(prev); 2*kept > total {
		r.merge(prev, renumber, total)
	} else {
		r.build(total)
	}
	for range lookahead {
		r.points = append(r.points, ^uint64(nodeMask)|r.points[0]&nodeMask)
	}
	return r
}

// Len returns the number of nodes.
func (r *Ring) Len() int { return len(r.members) }

// Owner returns the index of the node that the key with this hash belongs
// to, or -1 if there are no nodes.
func (r *Ring) Owner(hash uint64) int {
	if len(r.points) == 0 {
		return -1
	}
	return int(r.points[r.find(place(hash))] & nodeMask)
}

// find returns the position of the first point at or after a place.
func (r *Ring) find(place uint64) int {
	place &^= nodeMask
	i := int(r.index[place>>r.shift])
	for {
		// The number of points before the place, without a branch that
		// the processor would guess wrong half of the time.
		p := (*[lookahead]uint64)(r.points[i:])
		_, a := bits.Sub64(p[0], place, 0)
		_, b := bits.Sub64(p[1], place, 0)
		_, c := bits.Sub64(p[2], place, 0)
		_, d := bits.Sub64(p[3], place, 0)
		i += int(a + b + c + d)
		if d == 0 {
			return i
		}
	}
}

// place returns the place of a key. The hash is mixed once more (the last
// step of MurmurHash3), so that poor hashes do no harm, and the ring's own
// hashes, which clients can work out, are no key's place.
func place(hash uint64) uint64 {
	hash ^= hash >> 33
	hash *= 0xff51afd7ed558ccd
	hash ^= hash >> 33
	hash *= 0xc4ceb9fe1a85ec53
	return hash ^ hash>>33
}

// members works out the number of points of each node.
func members(nodes []Node) []member {
	divisor, greatest := 0, 0
	for _, n := range nodes {
		w := max(n.Weight, 1)
		greatest = max(greatest, w)
		for a := w; a != 0; { // Euclid
			divisor, a = a, divisor%a
		}
	}
	ms := make([]member, len(nodes))
	if len(nodes) == 0 {
		return ms
	}
	perWeight := unit
	// Halves, because the points of a node that has fewer are among those
	// it had: keys move only where points vanish.
	for perWeight > 1 && perWeight*(greatest/divisor) > maxPoints {
		perWeight /= 2
	}
	for i, n := range nodes {
		ms[i] = member{n.ID, perWeight * (max(n.Weight, 1) / divisor)}
	}
	return ms
}

// appendPoints appends the points of member i.
func (r *Ring) appendPoints(points []uint64, i int) []uint64 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], xxhash.Sum64String(r.members[i].id))
	for n := range r.members[i].points {
		binary.LittleEndian.PutUint64(b[8:], uint64(n))
		points = append(points, xxhash.Sum64(b[:])&^nodeMask|uint64(i))
	}
	return points
}

// build makes the points and the index from scratch. Places are even, so
// that one step of a radix sort, whose counts are the index, leaves a few
// points at a time to sort.
func (r *Ring) build(total int) {
	unsorted := make([]uint64, 0, total)
	for i := range r.members {
		unsorted = r.appendPoints(unsorted, i)
	}
	r.count(unsorted)
	r.points = make([]uint64, total, total+lookahead)
	next := slices.Clone(r.index)
	for _, p := range unsorted {
		r.points[next[p>>r.shift]] = p
		next[p>>r.shift]++
	}
	for i := range len(r.index) - 1 {
		if bucket := r.points[r.index[i]:r.index[i+1]]; len(bucket) > 1 {
			slices.Sort(bucket)
		}
	}
}

// kept returns how many points of prev the ring shares, and the index in r of
// each member of prev, or -1 for one whose points are not in r. Both lists of
// members are sorted, so numbering members anew keeps points in order.
func (r *Ring) kept(prev *Ring) (points int, renumber []int32) {
	if prev == nil {
		return 0, nil
	}
	renumber = make([]int32, len(prev.members))
	i := 0
	for j, m := range prev.members {
		for i < len(r.members) && r.members[i].id < m.id {
			i++
		}
		renumber[j] = -1
		if i < len(r.members) && r.members[i] == m {
			renumber[j] = int32(i)
			points += m.points
		}
	}
	return points, renumber
}

// merge makes the points from those of prev and those of the members that
// prev does not have.
func (r *Ring) merge(prev *Ring, renumber []int32, total int) {
	isOld := make([]bool, len(r.members))
	for _, i := range renumber {
		if i >= 0 {
			isOld[i] = true
		}
	}
	var fresh []uint64
	for i, old := range isOld {
		if !old {
			fresh = r.appendPoints(fresh, i)
		}
	}
	slices.Sort(fresh)
	fresh = append(fresh, ^uint64(0)) // after every point

	r.points = make([]uint64, total, total+lookahead)
	at, next := 0, 0
	for _, p := range prev.points[:len(prev.points)-lookahead] {
		i := renumber[p&nodeMask]
		if i < 0 {
			continue
		}
		p = p&^nodeMask | uint64(i)
		for fresh[next] < p {
			r.points[at] = fresh[next]
			at++
			next++
		}
		r.points[at] = p
		at++
	}
	copy(r.points[at:], fresh[next:])
	r.count(r.points)
}

// count makes the index: how many points there are before each entry's range.
func (r *Ring) count(points []uint64) {
	for _, p := range points {
		r.index[p>>r.shift+1]++
	}
	for i := 1; i < len(r.index); i++ {
		r.index[i] += r.index[i-1]
	}
}

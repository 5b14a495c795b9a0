package sim

import (
	"encoding/base64"
	"encoding/binary"
	"math"
	"strings"
)

// vocabulary holds words that are one token each, also with a space before.
// Their number is a power of two.
var vocabulary = [128]string(strings.Fields(`
	a able about above again air all also and any are area as at back be
	been best big block both bring but by cache call came can case city clear close
	cold come could cover cut day deep do done down draw each early earth east end
	even every far fast few field find first five fly for found from full gave get
	give go good great green group grow hand hard have head hear help here high hold
	home hour how idea in into is it just keep key kind know land large last
	late learn left less let life light like line list live long look low made main
	make many map mark may mean more most move much must name near need never new`))

// sentence is how many tokens of an answer make one, its full stop included.
const sentence = 9

// word returns the answer's next token. As text after the prompt it is exactly
// one token again, so that the next turn of a chat finds its blocks.
func (s *sequence) word() string {
	at := s.generated % sentence
	if at == sentence-1 {
		return "."
	}
	word := vocabulary[mix(s.seed+uint64(s.generated))%uint64(len(vocabulary))]
	if at == 0 {
		word = strings.ToUpper(word[:1]) + word[1:]
	}
	// The answer to a chat begins right after a mark, which ends a token.
	if n := len(s.text); s.generated == 0 && n > 1 && s.text[n-2] == markByte {
		return word
	}
	return " " + word
}

// mix is the finaliser of splitmix64: neighbouring seeds give unrelated words.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// vector returns a unit vector of n dimensions, the same for the same seed.
func vector(seed uint64, n int) []float32 {
	v := make([]float32, n)
	var square float64
	for i := range v {
		x := float64(int64(mix(seed+uint64(i)))) / math.MaxInt64
		v[i] = float32(x)
		square += x * x
	}
	for i := range v {
		v[i] = float32(float64(v[i]) / math.Sqrt(square))
	}
	return v
}

// base64Vector encodes v as OpenAI's SDKs ask for it: little-endian floats.
func base64Vector(v []float32) string {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(b)
}

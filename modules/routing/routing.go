// Package routing is what a third party imports to add a way of routing to
// the FlexInfer gateway: the request as a strategy sees it, the endpoints it
// chooses from, and the lease that counts the choice.
//
// A strategy is a Caddy module in the namespace flexinfer.strategies whose
// type implements [Strategy]; a source of endpoints is one in
// flexinfer.sources that implements [Source]. The package itself knows
// nothing of Caddy or HTTP servers, so that strategies can be tested with
// plain tables: see [NewSnapshot].
package routing

import (
	"net/http"
)

// A Strategy picks an endpoint for a request.
//
// Pick is called for each attempt, from many goroutines at once. It does no
// I/O, takes no lock that all requests share, and counts what it picks in the
// same step, by means of [Snapshot.TryAcquire] or [Snapshot.Acquire]. It
// returns a Decision without a lease when it cannot choose; the gateway then
// asks again with endpoints that are less fit, falls back to the model's
// service, or refuses the request.
//
// A strategy must respect [Snapshot.Usable], which knows what was tried and who
// is fit. The answer can change while a pick looks around: a strategy that finds
// nothing the second time has found nothing.
type Strategy interface {
	Pick(*Request, *Snapshot) Decision
}

// A Decision is a strategy's answer.
type Decision struct {
	// Lease counts the picked endpoint. Nil if none could be picked.
	Lease *Lease

	// Key is the key that took part in the choice. The zero Key if none did.
	Key Key

	// Reason says in a word or two what made the choice, where it was not
	// the plain rule of the strategy: "bound", "split", "keyless". Shown by
	// the admin API only.
	Reason string

	// Full reports that an endpoint would have been picked if it had room.
	// Set by [Pick], not by strategies.
	Full bool
}

// Keys yields the keys of a request. A key is worked out when it is first
// asked for.
type Keys interface {
	// SessionKey identifies the conversation.
	SessionKey() Key

	// PrefixKey identifies the head of the prompt. It falls back to the
	// session key, with [SourceSessionFallback].
	PrefixKey() Key

	// Continues reports whether the request is a later turn of a
	// conversation, that is, whether it holds an answer already.
	Continues() bool
}

// A Request is what a strategy sees of one call. It is not safe for
// concurrent use.
type Request struct {
	Keys

	// Model is the declared name of the model the request resolved to.
	Model string

	// Adapter is the LoRA adapter that was asked for, if any.
	Adapter string

	// Path is the URL path, without a /model/<name> prefix.
	Path string

	// Header holds the client's headers. Read only.
	Header http.Header

	// Tried lists the IDs of the endpoints that earlier attempts of this
	// call went to.
	Tried []string
}

// FixedKeys are keys known beforehand, for tests.
type FixedKeys struct {
	Session, Prefix Key
	LaterTurn       bool
}

// SessionKey implements [Keys].
func (k FixedKeys) SessionKey() Key { return k.Session }

// PrefixKey implements [Keys].
func (k FixedKeys) PrefixKey() Key {
	if !k.Prefix.Usable() && k.Session.Usable() {
		return Key{Hash: k.Session.Hash, Source: SourceSessionFallback}
	}
	return k.Prefix
}

// Continues implements [Keys].
func (k FixedKeys) Continues() bool { return k.LaterTurn }

// Interface guard
var _ Keys = FixedKeys{}

package sim

import (
	"container/list"
	"context"
	"time"

	"github.com/cespare/xxhash/v2"
)

// A sequence is one prompt and the answer to it, on its way through an engine.
type sequence struct {
	chain
	model  *model
	prompt int    // tokens
	from   int    // where the answer begins in the text
	answer int    // tokens, to be generated
	choice int    // of several answers to the same prompt
	finish string // why the answer ends
	seed   uint64 // of the answer's words

	// generated is how many tokens of the answer there are.
	generated int

	// computed says that the prompt's blocks may be shared.
	computed bool

	// What follows is guarded by the engine's mutex until the sequence runs.
	ready  chan struct{} // closed when it may run; nil if it could at once
	queued *list.Element
	runs   bool
	holding
	cached int // tokens of the prompt found in the cache
}

// newSequence returns a sequence over a rendered prompt, which it keeps and
// appends to. Prompts of different salt share no blocks.
func (e *Engine) newSequence(m *model, prompt []byte, salt string, answer int) *sequence {
	s := &sequence{model: m, answer: answer}
	s.chain = chain{blockSize: e.cfg.BlockSize, text: prompt, parent: m.seed}
	if salt != "" {
		s.parent ^= xxhash.Sum64String(salt)
	}
	s.grow()
	s.prompt, s.from = s.tokens, len(prompt)
	s.seed = xxhash.Sum64(prompt) ^ m.seed
	return s
}

// said returns what there is of the answer.
func (s *sequence) said() string { return string(s.text[s.from:]) }

// run takes s through the engine: it waits for room, computes the prompt, and
// calls emit with each token of the answer. It returns the error of emit, or
// that of ctx; either way s has left the engine.
func (e *Engine) run(ctx context.Context, s *sequence, emit func(token string) error) error {
	defer e.leave(s)
	if err := e.enter(ctx, s); err != nil {
		return err
	}
	if err := sleep(ctx, perToken(s.prompt-s.cached, e.cfg.PrefillRate)); err != nil {
		return err
	}
	e.prefilled(s)
	if err := sleep(ctx, e.cfg.TTFT); err != nil {
		return err
	}
	pace := pacer{rate: e.cfg.DecodeRate, last: time.Now()}
	for s.generated < s.answer {
		if s.tokens%s.blockSize == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			e.mu.Lock()
			e.cache.grow(&s.holding)
			e.mu.Unlock()
		}
		if s.generated > 0 {
			if err := pace.wait(ctx, e.slowdown()); err != nil {
				return err
			}
		}
		word := s.word()
		s.text = append(s.text, word...)
		s.grow()
		s.generated++
		s.model.generated.Add(1)
		if err := emit(word); err != nil {
			return err
		}
	}
	return nil
}

// enter queues s and waits until it may run.
func (e *Engine) enter(ctx context.Context, s *sequence) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	s.model.waiting.Add(1)
	s.queued = e.waiting.PushBack(s)
	e.schedule()
	if !s.runs {
		s.ready = make(chan struct{})
	}
	e.mu.Unlock()
	if s.ready == nil {
		return nil
	}
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// schedule lets in those at the head of the queue for whom there is a place,
// room in the cache, and nobody's prompt being computed. e.mu must be held.
func (e *Engine) schedule() {
	for head := e.waiting.Front(); head != nil && !e.prefilling; head = e.waiting.Front() {
		s := head.Value.(*sequence)
		if e.running.Load() >= int64(e.cfg.MaxNumSeqs) {
			return
		}
		inBlocks := func(tokens int) int { return (tokens + s.blockSize - 1) / s.blockSize }
		// The last token is always computed: its output is the first answer.
		limit := (s.prompt - 1) / s.blockSize
		if !e.cache.take(&s.holding, s.blocks, limit, inBlocks(s.prompt), inBlocks(s.prompt+s.answer)) {
			return
		}
		e.dequeue(s)
		s.cached = len(s.shared) * s.blockSize
		s.model.queries.Add(uint64(s.prompt))
		s.model.hits.Add(uint64(s.cached))
		s.runs = true
		s.model.running.Add(1)
		e.running.Add(1)
		e.prefilling = true
		if s.ready != nil {
			close(s.ready)
		}
	}
}

// prefilled shares the blocks of a prompt that is computed, and lets the next
// one be computed.
func (e *Engine) prefilled(s *sequence) {
	s.model.prompt.Add(uint64(s.prompt))
	e.mu.Lock()
	defer e.mu.Unlock()
	s.computed = true
	e.prefilling = false
	e.cache.publish(&s.holding, s.blocks)
	e.schedule()
}

// leave takes s out of the engine, wherever it is. The blocks that its answer
// filled stay in the cache.
func (e *Engine) leave(s *sequence) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if s.queued != nil {
		e.dequeue(s)
	}
	if s.runs {
		if s.computed {
			e.cache.publish(&s.holding, s.blocks)
		} else {
			e.prefilling = false
		}
		e.cache.release(&s.holding)
		s.model.running.Add(-1)
		e.running.Add(-1)
	}
	e.schedule()
}

func (e *Engine) dequeue(s *sequence) {
	e.waiting.Remove(s.queued)
	s.queued = nil
	s.model.waiting.Add(-1)
}

// slowdown says how much longer a token takes for the company of other
// sequences: half as long again when the engine is full.
func (e *Engine) slowdown() float64 {
	return 1 + float64(e.running.Load()-1)/float64(2*e.cfg.MaxNumSeqs)
}

// A pacer spaces tokens out. It counts from when a token was due, not from when
// it was sent, so that late timers do not add up.
type pacer struct {
	rate float64
	last time.Time
}

func (p *pacer) wait(ctx context.Context, slowdown float64) error {
	if p.rate == 0 {
		return nil
	}
	p.last = p.last.Add(time.Duration(slowdown / p.rate * float64(time.Second)))
	return sleep(ctx, time.Until(p.last))
}

func perToken(tokens int, rate float64) time.Duration {
	if rate == 0 {
		return 0
	}
	return time.Duration(float64(tokens) / rate * float64(time.Second))
}

// sleep waits for d, or until ctx is done.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

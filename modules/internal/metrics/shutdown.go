package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Shutdown is how far the process has got with its end, a label of
// shutdowns_total.
type Shutdown uint8

// The stages. A process goes through ShutdownStarted and one of the others.
const (
	// ShutdownStarted: the signal to stop is there.
	ShutdownStarted Shutdown = iota
	// ShutdownCompleted: every call had ended when the servers stopped.
	ShutdownCompleted
	// ShutdownTimeout: the grace period was over before every call had ended.
	ShutdownTimeout

	numShutdowns = int(ShutdownTimeout) + 1
)

var shutdownNames = [numShutdowns]string{"started", "completed", "timeout"}

func (s Shutdown) String() string { return shutdownNames[s] }

var (
	shutdowns = counter("shutdowns_total",
		"Shutdowns of the process that started, and how they ended.", "result")
	shutdownDuration = histogram("shutdown_duration_seconds",
		"Time from the signal to stop until the servers had stopped.",
		[]float64{.1, .5, 1, 2, 5, 10, 30, 60, 120, 300, 600})

	shutdownCounts = func() (counts [numShutdowns]prometheus.Counter) {
		for i := range counts {
			counts[i] = shutdowns.WithLabelValues(shutdownNames[i])
		}
		return counts
	}()
	shutdownSeconds = shutdownDuration.WithLabelValues()
)

// StartShutdown records that the process has begun to stop.
func StartShutdown() { shutdownCounts[ShutdownStarted].Inc() }

// EndShutdown records how the shutdown ended and how long it took.
func EndShutdown(s Shutdown, took time.Duration) {
	shutdownCounts[s].Inc()
	shutdownSeconds.Observe(took.Seconds())
}

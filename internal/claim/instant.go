package claim

import "time"

// Instant is one reading of the node's clocks.
//
// Only Boot and Mono may decide anything: wall clocks step, time zones change and
// uptime drifts (cases F8, F22). Mono is CLOCK_MONOTONIC, which does not advance
// while the node is suspended, as the runtime's own timers do not.
type Instant struct {
	// Boot is the boot ID as PID 1 sees it, in the kernel's UUID spelling.
	// Empty means that it could not be read; then nothing may be released.
	Boot string `json:"boot,omitempty"`
	// Mono is CLOCK_MONOTONIC in nanoseconds since the boot.
	Mono time.Duration `json:"mono"`
	// Wall is shown to people. It never decides.
	Wall time.Time `json:"wall"`
}

// Since returns how much monotonic time passed from earlier to i. ok is false
// when that cannot be said: another boot, an unread boot ID, or an earlier that
// lies in the future of i.
func (i Instant) Since(earlier Instant) (d time.Duration, ok bool) {
	if i.Boot == "" || i.Boot != earlier.Boot || earlier.Mono > i.Mono {
		return 0, false
	}
	return i.Mono - earlier.Mono, true
}

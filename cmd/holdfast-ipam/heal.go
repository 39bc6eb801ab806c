package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/holdfast-cni/holdfast/internal/claim"
	"github.com/holdfast-cni/holdfast/internal/wire"
)

// healSlack is what a healer may take beyond its time-out, to start and to end.
const healSlack = 2 * time.Second

// heal asks for one emergency sweep of this network. It is called without the store's
// lock. One healer at a time: who waited for another's takes its answer. What went wrong is
// in the answer, since the caller's error is that nothing is free.
func (r *request) heal(ctx context.Context, full *fullError) wire.HealResponse {
	p := r.sweep(ctx, nil)
	if full.held > 0 {
		p.Withheld = append(p.Withheld, fmt.Sprintf("%d held by the kernel of this node without a reservation", full.held))
	}
	return p
}

// sweep is heal; valid is what a runtime said it has.
func (r *request) sweep(ctx context.Context, valid *[]wire.Attachment) wire.HealResponse {
	fail := func(format string, a ...any) wire.HealResponse {
		return wire.HealResponse{Error: fmt.Sprintf(format, a...)}
	}
	h := r.extras.Heal
	if h.Disabled {
		return fail("healing is switched off (ipam.heal.disabled)")
	}
	asked := r.clock.Now()
	timeout := h.timeout + healSlack
	lock, err := r.healerLock(timeout)
	if err != nil {
		return fail("no healing: %v", err)
	}
	defer lock.Close() // gives it back
	if valid == nil {
		if p, ok := answerSince(lock, asked); ok {
			return p
		}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	q := wire.HealRequest{
		APIVersion: wire.APIVersion, Kind: wire.KindHealRequest,
		DataDir: r.conf.DataDir, Network: r.conf.Name, Spare: r.args.ContainerID, Valid: valid,
	}
	p, err := askAgent(ctx, h.Socket, q)
	if err != nil && ctx.Err() == nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		// Nobody there, or nobody who can be understood. If it is at work all the same, the
		// reapers' lock keeps the healer away.
		p, err = r.runHealer(ctx, q, lock)
	}
	if err != nil {
		p = fail("no healing: %v", err)
	}
	if valid == nil { // a GC's is an answer to another question
		keepAnswer(lock, r.clock.Now(), p)
	}
	return p
}

// healerLock takes the lock of healers of this network's directory.
func (r *request) healerLock(wait time.Duration) (*os.File, error) {
	var st unix.Stat_t
	if err := unix.Stat(r.dir(), &st); err != nil {
		return nil, fmt.Errorf("%q: %w", r.dir(), err)
	}
	if err := os.MkdirAll(r.extras.RunDir, 0o755); err != nil {
		return nil, err
	}
	path := filepath.Join(r.extras.RunDir, fmt.Sprintf("heal-%d-%d.lock", st.Dev, st.Ino))
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	got := make(chan error, 1)
	fd := int(f.Fd())
	go func() {
		for {
			err := unix.Flock(fd, unix.LOCK_EX)
			if err != unix.EINTR {
				got <- err
				return
			}
		}
	}()
	select {
	case err = <-got:
	case <-time.After(wait):
		// The process ends soon, and its descriptor with it.
		return nil, fmt.Errorf("another healer holds %q; waited %s", path, wait)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// answer is what the lock file holds: the last healer's answer and when it came.
type answer struct {
	At       claim.Instant     `json:"at"`
	Response wire.HealResponse `json:"response"`
}

// restAfter is how long an answer that released nothing is the answer to those who come later,
// too: the kubelet asks again and again for each Pod that a full network has no room for.
const restAfter = 3 * time.Second

// answerSince returns an answer that came after asked, while we waited, or that released
// nothing just before.
func answerSince(lock *os.File, asked claim.Instant) (wire.HealResponse, bool) {
	b, err := io.ReadAll(io.NewSectionReader(lock, 0, 1<<20))
	var a answer
	if err != nil || json.Unmarshal(b, &a) != nil {
		return wire.HealResponse{}, false
	}
	if _, ok := a.At.Since(asked); ok {
		return a.Response, true
	}
	age, ok := asked.Since(a.At)
	return a.Response, ok && age < restAfter && a.Response.Released == 0 && a.Response.Error == ""
}

// keepAnswer leaves the answer to those who wait. If it cannot be written they heal anew.
func keepAnswer(lock *os.File, at claim.Instant, p wire.HealResponse) {
	b, err := json.Marshal(answer{at, p})
	if err != nil || lock.Truncate(0) != nil {
		return
	}
	_, _ = lock.WriteAt(b, 0)
}

const noHealer = "no healing: no agent answers, and the holdfast binary is not there; put it beside this plugin, or name it in ipam.heal.binary"

// errNoAgent: nobody listens there.
var errNoAgent = errors.New("no agent")

// askAgent asks the agent. One that takes the request and gives no answer is an error, for
// two reapers would stand in each other's way.
func askAgent(ctx context.Context, socket string, q wire.HealRequest) (p wire.HealResponse, err error) {
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return p, errNoAgent
	}
	defer conn.Close()
	if t, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(t)
	}
	if err := wire.Write(conn, q); err != nil {
		return p, fmt.Errorf("agent at %s: %w", socket, err)
	}
	if p, err = wire.ReadResponse(conn); err != nil {
		return p, fmt.Errorf("agent at %s: %w", socket, err)
	}
	return p, nil
}

// runHealer starts `holdfast heal`, the request on its standard input. It has the lock of
// healers too, so that there is one healer even if we are killed.
func (r *request) runHealer(ctx context.Context, q wire.HealRequest, lock *os.File) (p wire.HealResponse, err error) {
	h := r.extras.Heal
	bin := h.Binary
	if bin == "" {
		self, err := os.Executable()
		if err != nil {
			return p, err
		}
		bin = filepath.Join(filepath.Dir(self), "holdfast")
	}
	if _, err := os.Stat(bin); errors.Is(err, os.ErrNotExist) {
		p.Error = noHealer
		return p, nil
	}
	var in, out, errs bytes.Buffer
	if err := wire.Write(&in, q); err != nil {
		return p, err
	}
	args := []string{"heal", "--request", "-", "--limit", h.timeout.String()}
	if dir := r.extras.StateDir; dir != "" {
		args = append(args, "--state-dir", dir)
	}
	args = append(args, h.Args...)
	cmd := exec.CommandContext(ctx, bin, args...)
	// Not CNI's: a process with CNI_CONTAINERID from a plugin's directory is an ADD in flight.
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = &in, &out, &errs
	cmd.ExtraFiles = []*os.File{lock}
	cmd.WaitDelay = time.Second
	runErr := cmd.Run()
	if p, err = wire.ReadResponse(&out); err != nil {
		err = fmt.Errorf("%s heal: %w", bin, cmp.Or(runErr, err))
		if text := bytes.TrimSpace(errs.Bytes()); len(text) > 0 {
			err = fmt.Errorf("%w: %.300q", err, text)
		}
		return p, err
	}
	return p, nil
}

// cmdGC is CNI's GC: what the runtime lists is alive; what it does not list is judged like
// anything else, since two runtimes may share a network (cni #1086). An absent list is an
// error: it would mean that nothing is valid.
func cmdGC(args *cmdArgs) error {
	r, err := parse(args)
	if err != nil {
		return err
	}
	var list struct {
		Valid *[]types.GCAttachment `json:"cni.dev/valid-attachments"`
	}
	if err := json.Unmarshal(args.StdinData, &list); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments: "+err.Error(), "")
	}
	if list.Valid == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments is absent: GC says what is valid, so an empty list is allowed and no list is not", "")
	}
	if _, err := os.Stat(r.dir()); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	valid := make([]wire.Attachment, 0, len(*list.Valid))
	for i, a := range *list.Valid {
		if a.ContainerID == "" { // whose it is cannot be read, and that is not "nobody's"
			return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("cni.dev/valid-attachments[%d] has no containerID", i), "")
		}
		valid = append(valid, wire.Attachment{ContainerID: a.ContainerID, IfName: a.IfName})
	}
	p := r.sweep(context.Background(), &valid)
	if p.Error == noHealer {
		// Nobody can judge here, so nothing goes, which is right though not what was hoped.
		say("GC removed nothing: %s", p)
		return nil
	}
	if p.Error != "" {
		return errors.New(p.String())
	}
	say("GC: %s", p)
	return nil
}

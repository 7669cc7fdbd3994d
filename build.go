package sandbox

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

const (
	// undoTimeout bounds everything an undo does, on a context that outlives the caller's.
	undoTimeout = 60 * time.Second
	// settleTime is what a call that makes or removes something gets to come to its end
	// when its caller has gone.
	settleTime = 500 * time.Millisecond
	// leaseTime is how long PID 1 of a sandbox that is not persistent does without word
	// of the handle; it then waits a third more, which makes 30 s. leaseRenewal is how
	// often a living handle is heard of.
	leaseTime    = 22500 * time.Millisecond
	leaseRenewal = 10 * time.Second

	logMaxSize  = "10m"
	logMaxFiles = 3
)

// undo is what has to be taken back when a step fails. Every step registers its undo
// before it runs, because a lost reply leaves us not knowing whether it was done.
type undo struct {
	steps []undoStep
}

type undoStep struct {
	what string
	run  func(context.Context) error
}

func (u *undo) add(what string, run func(context.Context) error) {
	u.steps = append(u.steps, undoStep{what, run})
}

// run takes everything back, newest first, and joins what could not be. While ctx
// lasts it bounds a step that hangs, which is then taken once more.
func (u *undo) run(ctx context.Context) error {
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	var errs []error
	for _, s := range slices.Backward(u.steps) {
		err := ctx.Err()
		if err == nil {
			err = engine.Insist(ctx, func() error { return s.run(ctx) })
		}
		if ctx.Err() != nil {
			err = engine.Insist(own, func() error { return s.run(own) })
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("left behind: %s: %w", s.what, err))
		}
	}
	u.steps = nil
	return errors.Join(errs...)
}

// settle makes a call that makes or removes something. The engine carries such a call
// out whether or not anybody waits for the reply: one given up at once may take effect
// after we have looked for what it left. So when ctx ends the call has a moment more.
func settle[T any](ctx context.Context, call func(context.Context) (T, error)) (T, error) {
	if ctx.Err() != nil {
		return *new(T), cancelled(ctx)
	}
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = pause(own, settleTime)
		cancel()
	})()
	got, err := call(own)
	if err != nil && own.Err() != nil {
		err = cancelled(ctx)
	}
	return got, err
}

// createContainer creates a container that the undo removes by its nonce.
func createContainer(ctx context.Context, eng *engine.Engine, u *undo, spec engine.ContainerSpec, nonce string) (string, error) {
	unsure := false
	u.add("container "+spec.Name, func(ctx context.Context) error {
		if unsure {
			if err := outwait(ctx, eng, spec, nonce); err != nil {
				return err
			}
		}
		return removeContainer(ctx, eng, spec.Name, nonce)
	})
	id, err := settle(ctx, func(ctx context.Context) (string, error) { return eng.CreateContainer(ctx, spec) })
	unsure = err != nil && (ctx.Err() != nil || errors.Is(err, engine.ErrUnavailable))
	if errors.Is(err, engine.ErrConflict) {
		u.steps = u.steps[:len(u.steps)-1] // the name is another's: nothing was made
	}
	return id, err
}

// outwait returns when a create whose reply we did not get can't bring the container
// about any more. The engine reserves the name first and shows the container last; in
// between only an attempt to take the name tells.
func outwait(ctx context.Context, eng *engine.Engine, spec engine.ContainerSpec, nonce string) error {
	probe := engine.ContainerSpec{Name: spec.Name, Image: spec.Image, Entrypoint: spec.Entrypoint, NetworkMode: "none"}
	probe.Labels = helperLabels(eng, nonce)
	for {
		_, err := eng.InspectContainer(ctx, spec.Name)
		if !errors.Is(err, engine.ErrNotFound) {
			return err
		}
		if _, err = eng.CreateContainer(ctx, probe); !errors.Is(err, engine.ErrConflict) {
			return err
		}
		if err := pause(ctx, stillThere); err != nil {
			return err
		}
	}
}

// removeContainer removes the container if it carries our nonce. The look and the removal
// go by name and then by the ID found, so a stranger's container is never touched.
func removeContainer(ctx context.Context, eng *engine.Engine, ref, nonce string) error {
	for {
		got, err := eng.InspectContainer(ctx, ref)
		if errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		// A container has the labels of its image: with a role that only images have it is
		// of somebody who made one from an image of ours.
		if !record.Is(got.Labels, "", record.RoleSandbox, record.RoleHelper) || got.Labels[record.Nonce] != nonce {
			return nil
		}
		err = eng.RemoveContainer(ctx, got.ID, true)
		if err == nil || errors.Is(err, engine.ErrNotFound) {
			return nil
		}
		if !errors.Is(err, engine.ErrConflict) {
			return err
		}
		// Somebody else is removing it: see it gone, or its volumes can't go.
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// removeVolume removes the volume if it carries our nonce, and waits for a container
// that is on its way out to let go of it.
func removeVolume(ctx context.Context, eng *engine.Engine, name, nonce string) error {
	got, err := eng.InspectVolume(ctx, name)
	if errors.Is(err, engine.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	if got.Labels[record.Managed] != "true" || got.Labels[record.Nonce] != nonce {
		return nil
	}
	return dropVolume(ctx, eng, name)
}

// dropVolume removes a volume, and waits for a container that is about to let go of it.
func dropVolume(ctx context.Context, eng *engine.Engine, name string) error {
	err := removeUnused(ctx, eng, name)
	if errors.Is(err, ErrVolumeNotFound) {
		return nil
	}
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return cancelled(ctx)
	case <-t.C:
		return nil
	}
}

// reporter calls a progress function one call at a time, and never after it was
// silenced.
type reporter struct {
	mu sync.Mutex
	fn func(Progress)
}

func (r *reporter) report(p Progress) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fn != nil {
		r.fn(p)
	}
}

func (r *reporter) silence() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fn = nil
}

// building marks the context of an OnCreate, so that a Get of the sandbox being made
// does not wait for itself.
type building struct{}

// build is one run of the transaction that makes a sandbox.
type build struct {
	c       *Client
	eng     *engine.Engine
	s       *settings
	place   *place
	rec     record.Sandbox
	claim   *record.Claim
	image   engine.Image
	guest   guestVolume
	op      string  // nonce of what is being done: of the sandbox, when that is made
	seccomp string  // a security option, or empty
	adopts  bool    // the workspace existed and is not ours to undo
	mounted []Mount // with the volumes that copies go to
	fills   []fill
	base    string     // the image that the container is made from
	forked  []transfer // of copies of another sandbox's copies
	inlay   *inlay
	undo    undo
	report  *reporter
}

func (c *Client) newBuild(eng *engine.Engine, s *settings, place *place) *build {
	seed := make([]byte, ed25519.SeedSize)
	rand.Read(seed)
	b := &build{c: c, eng: eng, s: s, place: place, mounted: slices.Clone(s.mounts), report: &reporter{fn: s.progress}}
	b.rec = record.Sandbox{
		ID: s.id, Name: s.name, Nonce: record.NewNonce(), CreatedAt: eng.Now(),
		Tags: s.tags, Persistent: *s.persistent, ControlKey: seed,
		Settings: record.SandboxSettings{
			Image: s.image, Runtime: s.runtime, User: s.user, Workdir: s.workdir, Command: s.command,
			TimeoutMS: s.timeout.Milliseconds(), StopTimeoutMS: s.stopTimeout.Milliseconds(),
			Ports: s.published(), Network: s.network.String(),
		},
	}
	if s.source != nil {
		b.rec.Settings.Source = s.source.String()
	}
	b.op = b.rec.Nonce
	return b
}

// run makes the sandbox, or nothing. A *record.HeldError says that another maker has
// the name.
func (b *build) run(ctx context.Context) (sb *Sandbox, err error) {
	defer b.report.silence()
	done := false
	defer func() {
		if done {
			return
		}
		// Also when OnCreate panics; the panic goes on afterwards.
		if sb != nil {
			sb.release()
		}
		if b.claim != nil {
			b.claim.Stop()
		}
		err = errors.Join(err, b.undo.run(ctx))
		sb = nil
	}()
	steps := []func(context.Context) error{
		b.lock, b.prepare, b.volumes, b.before, b.session,
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
		if ctx.Err() != nil {
			return nil, cancelled(ctx)
		}
	}
	sb, err = b.open(ctx)
	if err != nil {
		return sb, err
	}
	for _, fn := range b.s.onCreate {
		if err := fn(context.WithValue(ctx, building{}, b.rec.Name), sb); err != nil {
			return sb, fmt.Errorf("OnCreate: %w", err)
		}
	}
	if ctx.Err() != nil {
		return sb, cancelled(ctx)
	}
	if err := b.claim.Commit(ctx); err != nil {
		return sb, err
	}
	done = true
	if err := b.claim.DropRenewals(context.WithoutCancel(ctx)); err != nil {
		b.c.log.Warn("a renewed marker is left for the next sweep", "sandbox", b.rec.Name, "error", err)
	}
	return sb, nil
}

// lock claims the name among those who are making sandboxes.
func (b *build) lock(ctx context.Context) error {
	b.undo.add(fmt.Sprintf("pending marker of %q", b.rec.Name), func(ctx context.Context) error {
		return record.Drop(ctx, b.eng, b.rec.Name, b.rec.Nonce)
	})
	b.undo.add(fmt.Sprintf("revisions of %q", b.rec.Name), func(ctx context.Context) error {
		if len(b.s.onCreate) == 0 {
			return nil // nobody else could have made one
		}
		return record.DropRevisions(ctx, b.eng, b.rec)
	})
	var err error
	b.claim, err = settle(ctx, func(ctx context.Context) (*record.Claim, error) {
		return record.TryClaim(ctx, b.eng, b.rec.Name, b.rec.Nonce, holder())
	})
	return err
}

// prepare has everything that is shared and could be slow, before anything of this
// sandbox exists.
func (b *build) prepare(ctx context.Context) error {
	if err := b.runtime(ctx); err != nil {
		return err
	}
	if b.s.source != nil {
		if err := b.s.source.prepare(ctx, b); err != nil {
			return err
		}
	}
	if b.s.origin != nil {
		if err := b.s.origin.prepare(ctx, b); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	if b.base == "" {
		b.base = b.s.image
		g.Go(func() (err error) {
			b.image, err = ensureImage(ctx, b.eng, b.s.image, b.report)
			return err
		})
	}
	g.Go(func() (err error) {
		b.guest, err = b.c.ensureGuest(ctx, b.eng, b.report)
		return err
	})
	g.Go(func() (err error) {
		b.seccomp, err = b.eng.SeccompOption(ctx)
		return err
	})
	return g.Wait()
}

// runtime asks whether the engine has the runtime that was chosen.
func (b *build) runtime(ctx context.Context) error {
	if b.s.ociRuntime == "" {
		return nil
	}
	info, err := b.eng.Info(ctx)
	if err != nil {
		return err
	}
	if !slices.Contains(info.Runtimes, b.s.ociRuntime) {
		return fmt.Errorf("%w: it has no OCI runtime %q, only %s", ErrUnsupported, b.s.ociRuntime, strings.Join(info.Runtimes, ", "))
	}
	return nil
}

// volumes makes the workspace, or adopts one that a deleted sandbox left under its ID.
func (b *build) volumes(ctx context.Context) error {
	name := record.WorkspaceName(b.rec.ID)
	b.undo.add("volume "+name, func(ctx context.Context) error {
		return removeVolume(ctx, b.eng, name, b.rec.Nonce)
	})
	got, err := b.volume(ctx, name, Workspace, b.rec.VolumeLabels(record.RoleWorkspace))
	if err != nil {
		return fmt.Errorf("make volume %s: %w", name, err)
	}
	if got.Labels[record.Nonce] == b.rec.Nonce {
		return b.copies(ctx)
	}
	if !record.Is(got.Labels, record.RoleWorkspace) {
		return &record.ForeignError{Kind: "volume", Object: name}
	}
	users, err := b.eng.ListContainers(ctx, engine.Filter{Volume: name})
	if err != nil {
		return err
	}
	if len(users) > 0 {
		return fmt.Errorf("%w: ID %q is that of container %s", ErrExists, b.rec.ID, users[0].Name)
	}
	if err := b.adopting(); err != nil {
		return err
	}
	b.adopts = true
	return b.copies(ctx)
}

// session makes the container and starts it, and beside that fills the volumes: the copy
// then takes little time of its own. No one gets in before the marker is gone; but a main
// process would see a copy that is not complete, and the start makes directories in a
// volume that others are mounted in. Those starts wait.
func (b *build) session(ctx context.Context) error {
	copies, source := b.filler(), b.filler()
	b.undo.add("helper", copies.undo.run)
	b.undo.add("helper", source.undo.run)
	own, stop := context.WithCancel(ctx)
	defer stop()
	fills, own := errgroup.WithContext(own)
	fills.Go(func() error {
		if err := copies.run(own, b.fills); err != nil {
			return fmt.Errorf("fill volume: %w", err)
		}
		return nil
	})
	fills.Go(func() error { return source.source(own, b.s.source) })
	wait := sync.OnceValue(fills.Wait)
	err := b.container(ctx)
	if err == nil && b.s.origin != nil {
		ready := make(chan error, 2)
		fills.Go(func() error {
			err := b.s.origin.fill(own, b, func() { ready <- nil })
			ready <- err
			return err
		})
		if err = <-ready; err != nil {
			err = wait() // which has the first failure
		}
	}
	if err == nil && (len(b.s.command) > 0 || nested(b.mounted, b.s.source != nil || b.s.origin != nil)) {
		err = wait()
	}
	if err == nil {
		err = b.start(ctx)
	}
	if err != nil {
		stop()
		wait() // its helpers are about to be taken back
		return err
	}
	return b.outlast(ctx, wait)
}

// outlast waits for what fills the volumes. That takes as long as it takes, and a session
// that has begun beside it may have a lease, which is kept meanwhile.
func (b *build) outlast(ctx context.Context, wait func() error) error {
	if b.rec.Persistent {
		return wait()
	}
	filled := make(chan error, 1)
	go func() { filled <- wait() }()
	select {
	case err := <-filled:
		return err
	case <-time.After(leaseRenewal):
	}
	got, err := b.eng.InspectContainer(ctx, record.ContainerName(b.rec.Name))
	if err == nil && got.Labels[record.Nonce] == b.rec.Nonce && hasSession(got) {
		keeper := b.c.handle(b.eng, b.rec, got)
		keeper.owner, keeper.inlay = true, b.inlay
		keeper.keepSecrets(1, b.s.secrets)
		keeper.begin(nil)
		defer keeper.release()
	}
	return <-filled // else open says what became of it
}

// before is what an origin does before there is a container.
func (b *build) before(ctx context.Context) error {
	if b.s.origin == nil {
		return nil
	}
	return b.s.origin.before(ctx, b)
}

// container makes the container. Its name is the lock: from here on the sandbox's
// name is ours on this engine, or we fail.
func (b *build) container(ctx context.Context) error {
	b.report.report(Progress{Step: "container"})
	spec, err := b.spec()
	if err != nil {
		return err
	}
	b.attached()
	for {
		_, err = createContainer(ctx, b.eng, &b.undo, spec, b.rec.Nonce)
		if !errors.Is(err, engine.ErrConflict) {
			break
		}
		if err := nameTaken(ctx, b.eng, b.rec.Name); err != nil {
			return err
		}
		// It is on its way out, or gone since.
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	if errors.Is(err, engine.ErrNotFound) {
		err = fmt.Errorf("%w: %s was removed meanwhile: %w", ErrImageNotFound, spec.Image, err)
	}
	if err != nil {
		return fmt.Errorf("make container %s: %w", spec.Name, err)
	}
	if b.adopts {
		// Two may adopt one workspace at the same moment: each looks after it is in.
		users, err := b.eng.ListContainers(ctx, engine.Filter{Volume: record.WorkspaceName(b.rec.ID)})
		if err != nil {
			return err
		}
		if len(users) > 1 {
			return fmt.Errorf("%w: ID %q is being adopted twice", ErrExists, b.rec.ID)
		}
	}
	return b.stillAttached(ctx)
}

// nameTaken says who has the container name of a sandbox, or nil when nobody has it
// any more.
func nameTaken(ctx context.Context, eng *engine.Engine, name string) error {
	got, err := locate(ctx, eng, name)
	switch {
	case errors.Is(err, engine.ErrNotFound):
		return nil
	case err != nil:
		return err
	case got.Labels[record.Managed] != "true":
		return &record.ForeignError{Kind: "container", Object: got.Name}
	case got.State == engine.StateRemoving:
		return nil
	}
	return ErrExists
}

// spec is the container as the engine is to make it.
func (b *build) spec() (engine.ContainerSpec, error) {
	b.rec.Settings.User = b.user()
	labels, err := b.rec.Labels()
	if err != nil {
		return engine.ContainerSpec{}, invalid("%w", err)
	}
	key := ed25519.NewKeyFromSeed(b.rec.ControlKey)
	boot := wire.Init{
		ControlKey: key.Public().(ed25519.PublicKey),
		Timeout:    b.s.timeout,
		Grace:      b.s.stopTimeout,
		Ports:      b.rec.Settings.Ports,
	}
	if !b.rec.Persistent {
		boot.Lease = leaseTime
	}
	user := b.rec.Settings.User
	boot.Workspace = wire.Workspace{Path: Workspace, User: user, Mounts: below(b.mounted)}
	if len(b.s.command) > 0 {
		boot.Main = &wire.Exec{Args: b.s.command, Dir: b.s.workdir, User: user}
		isHome := func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }
		boot.Home = slices.ContainsFunc(b.image.Env, isHome) || slices.ContainsFunc(b.env(), isHome)
	}
	told, err := json.Marshal(boot)
	if err != nil {
		return engine.ContainerSpec{}, err
	}
	var security []string
	if b.seccomp != "" {
		security = append(security, b.seccomp)
	}
	return engine.ContainerSpec{
		Name:       record.ContainerName(b.rec.Name),
		Image:      b.base,
		Hostname:   b.rec.Name,
		User:       "0:0", // PID 1; commands run as the sandbox's user
		WorkingDir: b.s.workdir,
		Entrypoint: []string{wire.Path, wire.VerbInit, string(told)},
		Env:        b.env(),
		Labels:     labels,
		NanoCPUs:   int64(b.s.vcpus * 1e9),
		Memory:     b.s.memory,
		MemorySwap: b.s.memory,
		PidsLimit:  b.s.pidsLimit,
		Runtime:    b.s.ociRuntime,
		Ports:      b.rec.Settings.Ports,
		DNS:        b.c.servers(),
		Mounts: append([]engine.Mount{
			{Type: "volume", Source: record.WorkspaceName(b.rec.ID), Target: Workspace,
				NoCopy: true, VolumeLabels: b.rec.VolumeLabels(record.RoleWorkspace)},
			b.guest.mount(),
		}, b.mounts()...),
		// PID 1 keeps NET_ADMIN for itself and drops it from everything it starts.
		CapAdd:      []string{"NET_ADMIN"},
		CapDrop:     []string{"NET_RAW", "MKNOD"},
		SecurityOpt: security,
		StopSignal:  "SIGTERM",
		StopTimeout: b.s.stopTimeout,
		LogMaxSize:  logMaxSize,
		LogMaxFiles: logMaxFiles,
	}, nil
}

// user is who commands run as: the caller's choice, else the image's.
func (b *build) user() string {
	if b.s.user != "" {
		return b.s.user
	}
	return b.image.User
}

func (b *build) env() []string {
	var env []string
	for _, k := range slices.Sorted(maps.Keys(b.s.env)) {
		env = append(env, k+"="+b.s.env[k])
	}
	return env
}

// start starts the first session. A start that the engine reports as done is not yet
// a session that runs, so the container is looked at again.
func (b *build) start(ctx context.Context) error {
	b.report.report(Progress{Step: "start"})
	wait := b.c.foresee(ctx, b.eng, b.s.network, false)
	defer wait()
	return startContainer(ctx, b.eng, b.c, b.rec.Name)
}

// open returns a handle on what was built.
func (b *build) open(ctx context.Context) (*Sandbox, error) {
	got, err := b.eng.InspectContainer(ctx, record.ContainerName(b.rec.Name))
	if err != nil {
		return nil, err
	}
	if got.Labels[record.Nonce] != b.rec.Nonce {
		return nil, fmt.Errorf("%w: the container was replaced while it was being made", ErrExists)
	}
	sb := b.c.handle(b.eng, b.rec, got)
	sb.onResume = b.s.onResume
	sb.owner, sb.inlay = !b.rec.Persistent, b.inlay
	if got.State != engine.StateRunning {
		return sb, fmt.Errorf("%w: the session ended as it began: %s", ErrNotRunning, ended(got))
	}
	sb.begin(b.s.together)
	sb.keepSecrets(1, b.s.secrets)
	if err := sb.commence(ctx, b.rec, got, made); err != nil {
		return sb, err
	}
	if len(b.s.command) > 0 {
		if err := sb.mainStarted(ctx); err != nil {
			return sb, err
		}
	}
	return sb, nil
}

// ensureImage has the image on the engine. Only an image that is missing is pulled.
func ensureImage(ctx context.Context, eng *engine.Engine, ref string, report *reporter) (engine.Image, error) {
	img, err := eng.InspectImage(ctx, ref)
	if !errors.Is(err, engine.ErrNotFound) {
		return img, err
	}
	report.report(Progress{Step: "image", Text: "pulling " + ref})
	var layers pullProgress
	err = eng.PullImage(ctx, ref, func(e engine.PullEvent) {
		current, total := layers.add(e)
		report.report(Progress{Step: "image", Text: e.Status, Current: current, Total: total})
	})
	if err == nil {
		img, err = eng.InspectImage(ctx, ref)
	}
	if err != nil && ctx.Err() == nil && !errors.Is(err, engine.ErrUnavailable) {
		err = fmt.Errorf("%w: %s is not on the engine and pulling it failed: %w", ErrImageNotFound, ref, err)
	}
	return img, err
}

// pullProgress adds up the layers of a pull.
type pullProgress struct{ layers map[string]engine.PullEvent }

func (p *pullProgress) add(e engine.PullEvent) (current, total int64) {
	if p.layers == nil {
		p.layers = map[string]engine.PullEvent{}
	}
	if e.Layer != "" && e.Total > 0 {
		p.layers[e.Layer] = e
	}
	for _, l := range p.layers {
		current += l.Current
		total += l.Total
	}
	return current, total
}

package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// An ancestor is what a sandbox is made from beside its image: another one, or a snapshot.
// What it has of files is in place before the first session starts.
type ancestor interface {
	// prepare says which image the container is made from.
	prepare(context.Context, *build) error
	// lower is the directory that a new volume for target can be laid over, or empty, and
	// the snapshot that it is of.
	lower(target string) (dir, id string)
	// before is called when the volumes are there and the container is not.
	before(context.Context, *build) error
	// fill is called when the container is there and has not been started. It calls
	// ready, once, if what is still to be done then may be done beside the start.
	fill(ctx context.Context, b *build, ready func()) error
}

// errAnew says that a sandbox could not be made as it was begun, and can be in another
// way, which whoever returns it has taken note of.
var errAnew = errors.New("it has to be made in another way")

// Fork makes a new sandbox with the files another one has at this instant, and starts
// its session: the container's own files, the workspace and every copy of a directory.
// Attached volumes are attached again and directories mounted again. What happens in one
// of the two afterwards is not seen by the other.
//
// The new sandbox is made as the source was, with what [Sandbox.Update] changed of it;
// each option given takes the place of the source's own value, whole: [WithTags] of all
// tags, [WithEnv] of all variables, [WithMounts] of all mounts. It has a name and an ID of
// its own, by the rules of [Create]; with [WithName] it is persistent, else if the source
// is, unless [WithPersistent] says otherwise. What a policy's transforms set is not
// stored and so not inherited: [WithNetworkPolicy] gives it again.
//
// The source may be running, stopped, persistent or not, and is left in the state it is
// in. A running one is paused while its files are copied, and goes on whatever happens:
// should this process die meanwhile, with the first [Get], [List] or command 30 s later; a
// Get or a command that comes sooner waits for that. One that somebody else has paused
// stays paused. Sockets are not copied, nor is anything on a tmpfs; processes are not.
//
// Should the source's own files be few, and this client have forked it before, the new
// session starts beside the copy and gets them before it begins, through this process: up
// to 4 MiB, for a start some 0.1 s sooner.
//
// Engines that don't show a container's own files on their disk have to commit them,
// unless there are none, which takes about 5 s for a gigabyte and keeps times to the
// second and of extended attributes capabilities alone.
func Fork(ctx context.Context, source string, opts ...ForkOption) (*Sandbox, error) {
	return defaultClient().Fork(ctx, source, opts...)
}

// Fork is the package's [Fork] on the client's engine.
func (c *Client) Fork(ctx context.Context, source string, opts ...ForkOption) (*Sandbox, error) {
	sb, err := c.fork(ctx, source, opts)
	return sb, fail("fork", source, err)
}

func (c *Client) fork(ctx context.Context, source string, opts []ForkOption) (*Sandbox, error) {
	s, o, err := c.forking(ctx, source, opts, 0)
	if err != nil {
		return nil, err
	}
	if err := s.inherit(o.settings); err != nil {
		return nil, err
	}
	s.origin = o
	return c.create(ctx, s)
}

// forking returns the source of a fork as it is and what options say, which is checked
// before anything is looked at. Of n forks each has a number, and none an ID.
func (c *Client) forking(ctx context.Context, source string, opts []ForkOption, n int) (*settings, *live, error) {
	if err := checkName(source); err != nil {
		return nil, nil, err
	}
	s := &settings{maxPorts: c.limits.Ports}
	for _, o := range opts {
		if o != nil {
			o.applyFork(s)
		}
	}
	if s.id != "" && n > 0 {
		return nil, nil, invalid("WithID: %d sandboxes can't have one ID", n)
	}
	if err := s.numbered(n).check(); err != nil {
		return nil, nil, err
	}
	eng, err := c.engine(ctx)
	if err != nil {
		return nil, nil, err
	}
	o, err := c.live(ctx, eng, source)
	return s, o, err
}

// numbered is a copy of s for the nth of several, or the only one where n is 0.
func (s *settings) numbered(n int) *settings {
	t := *s
	if s.name != "" && n > 0 {
		t.name = fmt.Sprintf("%s-%d", s.name, n)
	}
	return &t
}

// inherit completes s with what its source was made with, and checks all of it.
func (s *settings) inherit(from *settings) error {
	if s.persistent == nil {
		persistent := s.name != "" || *from.persistent
		s.persistent = &persistent
	}
	s.user, s.workdir = cmp.Or(s.user, from.user), cmp.Or(s.workdir, from.workdir)
	s.ociRuntime = cmp.Or(s.ociRuntime, from.ociRuntime)
	s.pidsLimit = cmp.Or(s.pidsLimit, from.pidsLimit)
	if s.given&changeCommand == 0 {
		s.command = from.command
	}
	if s.given&changeEnv == 0 {
		s.env = from.env
	}
	if s.given&changeTags == 0 {
		s.tags = maps.Clone(from.tags)
	}
	if s.given&changeNetwork == 0 {
		s.network = from.network
	}
	if s.given&changePorts == 0 {
		s.ports = from.ports
		s.maxPorts = max(s.maxPorts, len(s.ports))
	}
	if s.given&changeCPUs == 0 {
		s.vcpus = from.vcpus
		if s.given&changeMemory == 0 {
			s.memory = from.memory
		}
	}
	if s.given&changeTimeout == 0 {
		s.timeout = from.timeout
	}
	if s.given&changeStopTimeout == 0 {
		s.stopTimeout = from.stopTimeout
	}
	if err := s.check(); err != nil {
		return err
	}
	s.image, s.runtime = from.image, from.runtime
	if s.given&changeMounts == 0 {
		s.mounts = slices.Clone(from.mounts) // as they are: their directories may be gone
	}
	return nil
}

// live is the origin of a fork: a sandbox as it is.
type live struct {
	eng      *engine.Engine
	rec      record.Sandbox
	got      engine.Container
	image    engine.Image // that its container was made from
	base     string       // to make the container from
	settings *settings    // to make one like it
	careful  bool         // no fork is started before all of it has been copied
}

func (c *Client) live(ctx context.Context, eng *engine.Engine, nameOrID string) (*live, error) {
	rec, got, err := c.findSettled(ctx, eng, nameOrID)
	if err != nil {
		return nil, err
	}
	if got.State == engine.StateRemoving {
		return nil, ErrNotFound
	}
	image, err := eng.InspectImage(ctx, got.ImageID)
	if err != nil {
		return nil, fmt.Errorf("its image: %w", err)
	}
	o := &live{eng: eng, rec: rec, got: got, image: image, base: got.ImageID}
	if slices.Contains(image.Tags, got.Image) {
		o.base = got.Image // else the name is another image's by now
	}
	if o.settings, err = settingsOf(rec, got, image); err != nil {
		return nil, err
	}
	if text := rec.Network().Policy; text != "" {
		if o.settings.network, err = policy.Parse(text); err != nil {
			return nil, fmt.Errorf("its network policy: %w", err)
		}
	}
	if o.settings.ociRuntime == "runc" {
		o.settings.ociRuntime = "" // every engine's own
	}
	return o, nil
}

func (o *live) prepare(_ context.Context, b *build) error {
	b.image, b.base = o.image, o.base
	b.rec.Settings.Source, b.rec.Settings.Snapshot = forkOf(o.rec.Name), o.rec.Settings.Snapshot
	return nil
}

// forkOf is the source of a fork, for people.
func forkOf(sandbox string) string { return "fork of " + sandbox }

func (o *live) lower(string) (dir, id string) { return "", "" }

// transfers are the source's volumes and those of b that they are copied into.
func (o *live) transfers(b *build) []transfer {
	ts := []transfer{{what: "workspace", from: tree{volume: record.WorkspaceName(o.rec.ID)},
		to: tree{volume: record.WorkspaceName(b.rec.ID)}, labels: b.rec.VolumeLabels(record.RoleWorkspace)}}
	return append(ts, b.forked...)
}

// before is for an engine that does not show a container's own files: it commits them.
func (o *live) before(ctx context.Context, b *build) error {
	if o.got.Upper != "" && !b.c.commits {
		return nil
	}
	return o.copy(ctx, b, o.transfers(b), nil, func(ctx context.Context, got engine.Container) (err error) {
		// The engine does not stop for a caller who goes, and its image would come after
		// everything else has been taken back.
		b.report.report(Progress{Step: "commit"})
		b.base, err = b.layer(context.WithoutCancel(ctx), got)
		return err
	})
}

// fill copies on the engine's disk, the container's own files first: nothing else has to
// be there when the session starts, nor they where they go in as an [inlay]. Only a user
// that the source was not made for is given an empty workspace by the start, and waits.
func (o *live) fill(ctx context.Context, b *build, ready func()) error {
	if o.got.Upper == "" || b.c.commits {
		return nil
	}
	if o.careful || b.user() != o.settings.user {
		ready = nil
	}
	layer := transfer{what: "files of the container", from: tree{dir: o.got.Upper}, layer: true}
	own, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if ready != nil && b.c.layerIsSmall(o.rec.ID) {
		b.inlay = &inlay{laying: newGate()}
		layer.inlay = b.inlay
		// The session has a lease, and nobody to keep it before the files are there.
		late := time.AfterFunc(inlayTime, func() { cancel(errUnfit) })
		defer late.Stop()
		ready()
		ready = func() { late.Stop() }
	} else {
		made, err := b.eng.InspectContainer(ctx, record.ContainerName(b.rec.Name))
		if err != nil {
			return err
		}
		layer.to.dir = made.Upper
	}
	err := o.copy(own, b, append(o.transfers(b), layer), ready, nil)
	unfit := errors.Is(err, errUnfit) || err != nil && ctx.Err() == nil && errors.Is(context.Cause(own), errUnfit)
	if unfit {
		b.c.sawLayer(o.rec.ID, false)
	}
	if unfit || ready != nil && errors.Is(err, errMoved) {
		o.careful = true
		err = fmt.Errorf("%w: %w", errAnew, err)
	}
	return err
}

// inlayTime is how long an inlay may take, until the next to keep the lease does so.
const inlayTime = leaseRenewal / 2

// copy copies ts and calls also, which may be nil, while the source stands still. With a
// layered, which is called when the container's own files are there, it tries only once.
func (o *live) copy(ctx context.Context, b *build, ts []transfer, layered func(), also func(context.Context, engine.Container) error) error {
	tries := stillTries
	if layered != nil {
		tries = 1
	}
	k := b.c.capture(b.eng, b.rec.Name, b.rec.Nonce, b.report)
	b.undo.add("helper", k.undo.run)
	return b.c.still(ctx, b.eng, o.rec, tries, func(ctx context.Context, got engine.Container, again bool, freeze func() error) error {
		for i := range ts {
			if ts[i].layer {
				ts[i].from = layerOf(got)
			}
			ts[i].again = again
		}
		err := k.copy(ctx, ts, freeze, layered)
		if n := len(ts) - 1; err == nil && ts[n].layer && ts[n].inlay == nil {
			b.c.sawLayer(o.rec.ID, k.layer.Bytes <= smallLayer && k.layer.Files <= smallFiles)
		}
		if err == nil && also != nil {
			err = also(ctx, got)
		}
		return err
	})
}

package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/engine"
	"github.com/seed-1a2d6d8f/sandbox/internal/errdefs"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/accounts"
	"github.com/seed-1a2d6d8f/sandbox/internal/guest/wire"
	"github.com/seed-1a2d6d8f/sandbox/internal/plan"
	"github.com/seed-1a2d6d8f/sandbox/internal/record"
)

// At a start an engine opens the account files as its own user, and then mounts what the container
// has, one mount after the other, at what the target's path leads to at that moment. A symbolic
// link on the way could lead a mount over the guest, and a named pipe could block the engine. So
// that nothing has to be predicted, no such path may have a link on its way:
//
//   - a new container gets the targets without the links of its image (Place), and
//   - before each start none of them has anything but directories on its way (checkFiles): in the
//     container's own layer, and in each volume or directory that another mount is below. A helper
//     looks at these, each by itself, since the engine's own view depends on the mounts.
//
// Then each target leads to itself whatever is mounted already. What others can change between the
// look and the start is mounted in a new container only (provision.Outdated), in which nobody knows the
// guest's path, and PID 1 compares its mounts with those of its configuration before it does
// anything else.

// accountFiles are what a file that the engine must not open is replaced by, after a session.
var accountFiles = map[string]string{wire.PasswdFile: "root:x:0:0:root:/root:/bin/sh\n", wire.GroupFile: "root:x:0:\n"}

// OwnLayer is what is known of the files that a container has of its own, which spares a start the
// look at them.
type OwnLayer struct {
	Pristine bool // there are none
	Plain    bool // they have nothing but what may be there
}

// A Target is where a mount is requested. One that is kept is given to the engine as it is.
type Target struct {
	Path string
	Kept bool
}

// Places is where a new container's mounts are.
type Places struct {
	Targets []string // without symbolic links, in the order in which they were given
	Links   []string // symbolic links of the image on the way to the engine's own files and to kept targets
	Linked  []string // where these links lead
}

// Place returns where the mounts of a container of an image, given by its ID, are to be, so that no
// symbolic link of the image is on the way. It fails if a target, or a file that the engine reads or
// mounts itself, leads to where nothing may be mounted, or through another mount.
func (m *Machine) Place(ctx context.Context, image string, targets []Target) (p Places, err error) {
	v := m.imageView(image)
	defer v.close(ctx)
	for _, t := range targets {
		p.Targets = append(p.Targets, t.Path)
	}
	// A target can lead below another one by a link. Its rest is in that mount then, and not in the
	// image, so that where it leads depends on where that one leads.
	for round := 0; ; round++ {
		ways, err := v.placeTargets(ctx, targets, p.Targets)
		if err != nil {
			return p, err
		}
		stable := true
		for i, w := range ways {
			stable = stable && p.Targets[i] == w.to
			p.Targets[i] = w.to
		}
		if stable {
			if err := checkPlaces(targets, ways); err != nil {
				return p, err
			}
			for i, t := range targets {
				if t.Kept {
					p.follow(ways[i], false)
				}
			}
			break
		}
		if round > len(targets) {
			return p, errdefs.Invalid("the mount targets %s lead below each other by symbolic links of the image", strings.Join(p.Targets, ", "))
		}
	}
	err = v.placeFiles(ctx, &p)
	slices.Sort(p.Links)
	p.Links = slices.Compact(p.Links)
	return p, err
}

// follow adds the links of a way, and where they lead. A session may replace an account file, or
// another file of the engine's, that is a link itself.
func (p *Places) follow(w way, file bool) {
	for _, link := range w.links {
		if !file || link != w.name {
			p.Links = append(p.Links, link)
		}
	}
	if w.to != w.name {
		p.Linked = append(p.Linked, w.to)
	}
}

// placeTargets resolves each target, where the others are mounted at points.
func (v *view) placeTargets(ctx context.Context, targets []Target, points []string) (ways []way, err error) {
	for i, target := range targets {
		w, err := v.way(ctx, target.Path, slices.Delete(slices.Clone(points), i, i+1))
		if err != nil {
			return nil, err
		}
		ways = append(ways, w)
	}
	return ways, nil
}

// checkPlaces fails if a target leads to where nothing may be mounted.
func checkPlaces(targets []Target, ways []way) error {
	used := map[string]string{}
	for i, w := range ways {
		if w.to != w.name {
			if err := plan.CheckTarget(w.to); err != nil {
				return errdefs.Invalid("mount target %s is a symbolic link to %s: %w", w.name, w.to, err)
			}
		}
		if other, is := used[w.to]; is {
			return errdefs.Invalid("mount targets %s and %s are, by a symbolic link, the same directory", w.name, other)
		}
		used[w.to] = w.name
		linked := targets[i].Kept && len(w.links) > 0
		for _, other := range ways {
			if linked && (strings.HasPrefix(w.to, other.to+"/") || strings.HasPrefix(other.to, w.to+"/")) {
				return errdefs.Invalid("the image declares a volume at %s, which leads to %s by a symbolic link: no other mount can be above or below that, as %s is", w.name, w.to, other.to)
			}
		}
	}
	return nil
}

// placeFiles finds the engine's own files, none of which may be in a mount: the engine opens what is
// below it.
func (v *view) placeFiles(ctx context.Context, p *Places) error {
	for _, name := range slices.Concat([]string{wire.PasswdFile, wire.GroupFile}, wire.PointFiles()) {
		w, err := v.way(ctx, name, nil)
		if err != nil {
			return err
		}
		account := accountFiles[name] != ""
		if account {
			if err := w.checkAccounts(); err != nil {
				return err
			}
		} else if slices.Contains(p.Targets, w.to) && len(w.links) == 0 {
			continue // the caller's own mount takes its place
		}
		if err := w.outside(p.Targets); err != nil {
			return err
		}
		p.follow(w, true)
	}
	return nil
}

// Paths returns what a start has to find in the own layer of a container with these targets, where
// links and linked are those of Places.
func Paths(targets, links, linked []string) (paths []wire.PathCheck) {
	paths = wire.EnginePaths()
	for _, name := range slices.Concat(linked, targets) {
		if !strings.HasPrefix(name, wire.Dir) { // in the root and random: checked by PID 1
			paths = append(paths, wire.PathCheck{Name: name})
		}
	}
	for _, name := range links {
		paths = append(paths, wire.PathCheck{Name: name, Kind: wire.KindLink})
	}
	return paths
}

// checkFiles fails if files of a container that does not run would mislead its start. Nobody can
// change them until the start, but see provision.Outdated.
func (m *Machine) checkFiles(ctx context.Context, got engine.Container, own OwnLayer) error {
	trees, err := m.treesOf(ctx, got, own)
	if err != nil || len(trees) == 0 {
		return err
	}
	looked, err := m.look(ctx, trees)
	if errors.Is(err, errNoLayer) && got.StartedAt.IsZero() { // the layer is empty
		trees = slices.DeleteFunc(trees, func(t tree) bool { return t.at == "" })
		looked, err = m.look(ctx, trees)
	}
	if err != nil {
		return fmt.Errorf("look at the files of container %s: %w", got.Name, err)
	}
	for _, r := range looked.Replaced {
		m.Log.Warn("an account file is replaced by one that lists root only", "container", got.Name, "file", r.Name, "was", r.Is)
	}
	for _, w := range looked.Wrong {
		return trees[w.Tree].refuse(w)
	}
	return nil
}

// targetsOf returns the targets of a container's mounts.
func targetsOf(got engine.Container) (targets []string) {
	for _, p := range got.Mounts {
		targets = append(targets, p.Target)
	}
	return targets
}

// LeftPlain reports whether PID 1 has found, at the end of a container's last session, that its own
// layer has nothing but what may be there (see wire.MarkedCode). PID 1 sees that as long as no symbolic
// link of the image is to be kept: it can't tell one from another.
func LeftPlain(got engine.Container) bool {
	rec, ok := record.Decode(got.Labels)
	if !ok || len(rec.Settings.Links)+len(rec.Settings.LinkedFiles) > 0 || got.State != engine.StateExited {
		return false
	}
	_, plain := wire.EndCode(got.ExitCode)
	return plain
}

// treesOf returns the trees that a start has to look at.
func (m *Machine) treesOf(ctx context.Context, got engine.Container, own OwnLayer) (trees []tree, err error) {
	targets := targetsOf(got)
	if !own.Pristine && !own.Plain && !LeftPlain(got) {
		layer, err := m.LayerOf(ctx, got)
		if err != nil {
			return nil, err
		}
		rec, _ := record.Decode(got.Labels)
		switch {
		case layer != (Layer{}):
			trees = append(trees, tree{layer: layer, wire: wire.LookTree{
				Paths: Paths(targets, rec.Settings.Links, rec.Settings.LinkedFiles), Replace: accountFiles}})
		case !got.StartedAt.IsZero():
			if err := m.checkUnlayered(ctx, got); err != nil {
				return nil, err
			}
		}
	}
	for _, outer := range got.Mounts {
		t := tree{at: outer.Target, mount: engine.Mount{Type: outer.Type, Source: outer.Source, ReadOnly: true, NoCopy: true}}
		if outer.Type == "volume" {
			t.mount.Source = outer.Name
		}
		for _, target := range targets {
			if rel, below := strings.CutPrefix(target, outer.Target+"/"); below {
				t.wire.Paths = append(t.wire.Paths, wire.PathCheck{Name: "/" + rel, Needed: !outer.RW})
			}
		}
		if len(t.wire.Paths) > 0 {
			trees = append(trees, t)
		}
	}
	return trees, nil
}

// NeedsLayer reports whether the mounts of a container that has had a session can only be checked in
// its own layer: a session can't replace a mount point in the root directory, but any directory
// above another one.
func NeedsLayer(got engine.Container) bool {
	return slices.ContainsFunc(got.Mounts, func(p engine.MountPoint) bool { return strings.Count(p.Target, "/") > 1 })
}

// checkUnlayered is checkFiles for a container whose own layer can't be looked at. All of its
// mounts are in the root directory (see NeedsLayer), where no session can have moved them: so the
// engine's view of the files outside of them is that of a start.
func (m *Machine) checkUnlayered(ctx context.Context, got engine.Container) error {
	if NeedsLayer(got) {
		return errdefs.Classify(errdefs.Unsupported, errors.New("the engine's storage driver does not show whether a mount's target is a symbolic link: the session takes a new container"))
	}
	v := &view{m: m, id: got.ID}
	for name, rootOnly := range accountFiles {
		err := v.checkFile(ctx, name, targetsOf(got))
		if !errors.Is(err, errNotAccounts) {
			if err != nil {
				return err
			}
			continue
		}
		m.Log.Warn("an account file is replaced by one that lists root only", "container", got.Name, "error", err)
		if at, e := v.at(ctx, path.Dir(name)); e != nil || !at.stat.Mode.IsDir() {
			return errors.Join(err, e)
		}
		if err := m.Engine.CopyTo(ctx, got.ID, path.Dir(name), bytes.NewReader(guestTar(entry{path.Base(name), 0o644, []byte(rootOnly)}))); err != nil {
			return fmt.Errorf("replace %s: %w", name, err)
		}
		if err := v.checkFile(ctx, name, targetsOf(got)); err != nil {
			return err
		}
	}
	for _, name := range wire.PointFiles() {
		if w, err := v.way(ctx, name, nil); err != nil {
			return err
		} else if err := w.outside(targetsOf(got)); err != nil {
			return err
		}
	}
	return nil
}

// checkFile fails with errNotAccounts if an account file is one that the engine must not open.
func (v *view) checkFile(ctx context.Context, name string, targets []string) error {
	w, err := v.way(ctx, name, nil)
	if err != nil {
		return err
	}
	if err := w.outside(targets); err != nil {
		return errdefs.Invalid("%w: %w", err, errNotAccounts)
	}
	return w.checkAccounts()
}

// outside fails if a way leads into a mount.
func (w *way) outside(targets []string) error {
	for _, at := range append(slices.Clone(w.links), w.to) {
		for _, target := range targets {
			if at == target || strings.HasPrefix(at, target+"/") {
				return errdefs.Invalid("%s is in the mount at %s: the engine needs this file before it mounts anything there", w.name, target)
			}
		}
	}
	return nil
}

// A tree is what a helper looks at: a container's own layer, or what is mounted at a path.
type tree struct {
	layer Layer
	mount engine.Mount
	at    string // path of the mount in the container, empty for a layer
	wire  wire.LookTree
}

// refuse returns the error for what is wrong in a tree.
func (t tree) refuse(w wire.WrongPath) error {
	at := path.Join("/", t.at, w.Name)
	for _, p := range t.wire.Paths {
		name := path.Join("/", t.at, p.Name)
		if name != at && !strings.HasPrefix(name, at+"/") {
			continue
		}
		if slices.Contains(wire.PointFiles(), name) || accountFiles[name] != "" || p.Kind == wire.KindLink {
			return errdefs.Invalid("%s is %s, and the engine needs directories as in the image on the way to %s", at, w.Is, name)
		}
		if w.Is == "missing" {
			return errdefs.Invalid("mount target %s: the mount at %s is read-only and has no %s to mount at", name, t.at, at)
		}
		in := "the files of the sandbox"
		if t.at != "" {
			in = "the mount at " + t.at
		}
		return errdefs.Invalid("mount target %s: %s is %s in %s, and no mount follows it: "+
			"mount elsewhere, or take the mount away (WithoutMount), which keeps all files", name, at, w.Is, in)
	}
	return errdefs.Invalid("%s is %s", at, w.Is)
}

// lookDir is where a helper has the trees that it looks at.
const lookDir = "/look"

// errNoLayer is the error of a look at a container's own layer that is not found.
var errNoLayer = errors.New("the container's own layer is not found")

// look runs a helper that looks at the trees.
func (m *Machine) look(ctx context.Context, trees []tree) (looked wire.Looked, err error) {
	if len(trees) == 0 {
		return looked, nil
	}
	var order wire.Look
	var mounts []engine.Mount
	layers := engine.Mount{Type: "bind", Target: LayersDir}
	adjust := func(spec *engine.ContainerSpec) {}
	for i, t := range trees {
		t.wire.Dir = fmt.Sprintf("%s/%d", lookDir, i)
		switch {
		case t.at != "":
			t.mount.Target = t.wire.Dir
			mounts = append(mounts, t.mount)
		case t.layer.Dir != "":
			mounts = append(mounts, engine.Mount{Type: "bind", Source: t.layer.Dir, Target: t.wire.Dir})
		default:
			layers.Source, order.Layers, order.LayerName, t.wire.Mark = t.layer.Root, LayersDir, t.layer.Name, t.layer.Mark
		}
		if t.at == "" {
			adjust = func(spec *engine.ContainerSpec) {
				spec.CapAdd = append(spec.CapAdd, "SYS_ADMIN") // to see overlayfs' own attributes
				spec.MachineUsers = true
			}
		}
		order.Trees = append(order.Trees, t.wire)
	}
	if layers.Source != "" {
		mounts = append(mounts, layers)
	}
	arg, err := json.Marshal(order)
	if err != nil {
		return looked, err
	}
	err = m.ask(ctx, func(spec *engine.ContainerSpec) {
		adjust(spec)
		spec.Mounts = mounts
		spec.Entrypoint = append(spec.Entrypoint, wire.VerbLook, string(arg))
	}, &looked)
	if err == nil && looked.NoLayer != "" {
		err = fmt.Errorf("%w: %s", errNoLayer, looked.NoLayer)
	}
	return looked, err
}

// LookupOwner resolves user[:group] against the account files of an image, given by its ID.
func (m *Machine) LookupOwner(ctx context.Context, image, user string) (wire.Owner, error) {
	if slices.Contains([]string{"", "0", "root", "0:0", "root:root"}, user) {
		return wire.Owner{}, nil
	}
	return m.lookup(ctx, image, user, nil)
}

// CheckUser fails if commands can't run as user[:group] in a container of an image, given by its ID,
// that does not run. IDs need not be listed in it, and take no call to the engine.
func (m *Machine) CheckUser(ctx context.Context, container, image, user string, own OwnLayer) error {
	none := func() io.ReadCloser { return io.NopCloser(strings.NewReader("")) }
	if _, err := accounts.Resolve(user, none, none); err == nil {
		return nil
	}
	key := image + " " + user // what an image has does not change
	if _, known := m.facts.users.Load(key); known && own.Pristine {
		return nil
	}
	var have map[string][]byte
	if !own.Pristine {
		got, err := m.Engine.InspectContainer(ctx, container)
		if err != nil {
			return err
		}
		layer, err := m.LayerOf(ctx, got)
		if err != nil {
			return err
		}
		if layer != (Layer{}) {
			looked, err := m.look(ctx, []tree{{layer: layer, wire: wire.LookTree{Read: []string{wire.PasswdFile, wire.GroupFile}}}})
			if err != nil && !(errors.Is(err, errNoLayer) && got.StartedAt.IsZero()) {
				return err
			}
			have = looked.Files
		}
	}
	_, err := m.lookup(ctx, image, user, have)
	if err == nil && own.Pristine {
		m.facts.users.Store(key, true)
	}
	return err
}

// lookup resolves user[:group] against the account files of an image, or those that are known.
func (m *Machine) lookup(ctx context.Context, image, user string, have map[string][]byte) (owner wire.Owner, err error) {
	v := m.imageView(image)
	defer v.close(ctx)
	passwd, group := v.accounts(ctx, have, &err)
	found, unknown := accounts.Resolve(user, passwd, group)
	if err != nil {
		return wire.Owner{}, err
	}
	if unknown != nil {
		return wire.Owner{}, errdefs.Invalid("%w; use one that it has, or a numeric ID", unknown)
	}
	return wire.Owner{UID: found.UID, GID: found.GID}, nil
}

// stoppedKey is a session that has ended.
type stoppedKey struct {
	container string
	ended     time.Time
}

// CheckStopped fails if the engine's view of the files of a container that does not run may not be
// that of a session: then no call may be made for which the engine makes the container's mounts. It
// looks once for each session that has ended, and at each call for others that may change what is
// below a mount.
func (m *Machine) CheckStopped(ctx context.Context, got engine.Container) error {
	if by, err := m.changedBy(ctx, got); err != nil {
		return err
	} else if by != "" {
		return errdefs.Classify(errdefs.NotRunning, fmt.Errorf("container %s runs and can change where the sandbox's mounts are: stop that one, or start the sandbox", by))
	}
	if got.StartedAt.IsZero() {
		return nil
	}
	key := stoppedKey{got.ID, got.FinishedAt}
	if _, known := m.stopped.Load(key); known {
		return nil
	}
	if err := m.checkFiles(ctx, got, OwnLayer{}); err != nil {
		return err
	}
	m.stopped.Store(key, nil)
	return nil
}

// changedBy returns the name of another container that runs and may change what a mount of got is
// below, or nothing. A process of the engine's machine may, too, and can do worse.
func (m *Machine) changedBy(ctx context.Context, got engine.Container) (string, error) {
	var outer []engine.MountPoint
	for _, o := range got.Mounts {
		if slices.ContainsFunc(got.Mounts, func(inner engine.MountPoint) bool { return strings.HasPrefix(inner.Target, o.Target+"/") }) {
			outer = append(outer, o)
		}
	}
	if len(outer) == 0 {
		return "", nil
	}
	all, err := m.Engine.ListContainers(ctx, engine.Filter{})
	if err != nil {
		return "", err
	}
	for _, other := range all {
		if other.ID == got.ID || !other.HasSession() && other.State != engine.StatePaused {
			continue
		}
		for _, p := range other.Mounts {
			if p.RW && slices.ContainsFunc(outer, func(o engine.MountPoint) bool { return overlap(o, p) }) {
				return other.Name, nil
			}
		}
	}
	return "", nil
}

// overlap reports whether two mounts have files in common, as far as their names tell.
func overlap(a, b engine.MountPoint) bool {
	if a.Type == "volume" && a.Name != "" && a.Name == b.Name {
		return true
	}
	return a.Source != "" && b.Source != "" && (strings.HasPrefix(a.Source+"/", b.Source+"/") || strings.HasPrefix(b.Source+"/", a.Source+"/"))
}

// Package record defines what is stored in the engine, as data: the labels that describe a sandbox
// and its volumes, the names of the objects that carry them, and the settings, markers and revisions
// in the labels. It calls no engine. Package claim has the protocols that create and remove them.
package record

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/seed-1a2d6d8f/sandbox/internal/policy"
)

// Label keys. They are a public contract, documented in docs/contract.md.
const (
	prefix     = "agent-sandbox."
	Managed    = prefix + "managed"
	schema     = prefix + "schema"
	ID         = prefix + "id"
	Name       = prefix + "name"
	Role       = prefix + "role"
	CreatedAt  = prefix + "created-at"
	CreatedBy  = prefix + "created-by"
	Source     = prefix + "source"
	Nonce      = prefix + "nonce"
	Persistent = prefix + "persistent"
	Until      = prefix + "until"
	Holder     = prefix + "holder"
	Settings   = prefix + "record"
	ControlKey = prefix + "control-key"
	Of         = prefix + "of"       // of a revision or a marker: the nonce of its sandbox
	After      = prefix + "after"    // of a revision: the nonce of the one before; of a container: see Previous
	By         = prefix + "by"       // of an object that a change made: the nonce of the marker held meanwhile; of a marker: the deletion
	Snapshot   = prefix + "snapshot" // of a volume: the snapshot whose files are its lower layer; of a container: see Rollback
	Deletes    = prefix + "deletes"  // of a marker: its sandbox is being deleted; of an entry: see Entry.Deletes
	Node       = prefix + "node"     // of an entry: the ID of a node of the swarm
	host       = prefix + "host"     // and its name
	From       = prefix + "from"     // of an entry or a marker: the nonce that a sandbox had before it was moved to another node
	tag        = prefix + "tag."
)

// schemaVersion is the version this build writes. It reads any.
const schemaVersion = "1"

// Values of the Role label.
const (
	RoleSandbox   = "sandbox"
	RoleWorkspace = "workspace"
	RoleRWCopy    = "rwcopy"
	RoleFork      = "fork"
	RoleImage     = "image" // a volume that the image declares
	RolePending   = "pending"
	RoleTakeover  = "takeover"
	RoleGuest     = "guest"
	RoleHelper    = "helper"
	RoleRevision  = "revision"
	RoleLayer     = "layer"
	roleSnapshot  = "snapshot" // a snapshot's record
	RoleFrozen    = "frozen"   // a snapshot's files, which never change
	RoleSweep     = "sweep"    // a sweep, see SweepName
	RoleOverlay   = "overlay"  // upper or work directory of a volume over a snapshot's files
	RoleEntry     = "entry"    // which node of a swarm has a sandbox
)

// MaxLabels bounds one object's labels, keys and values together: the largest network
// policy and 64 KiB of everything else. The engine itself accepts megabytes, but returns
// them in every list.
const MaxLabels = policy.MaxText + 64<<10

var valid = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// NameRule describes valid names and IDs in messages.
const NameRule = "1 to 63 characters of a-z 0-9 _ . - that begin with a letter or digit"

// ValidName reports whether s can be the name or the ID of a sandbox.
func ValidName(s string) bool { return valid.MatchString(s) }

// VolumeRule describes valid volume names in messages.
const VolumeRule = "1 to 128 characters of a-z 0-9 _ . - that begin with a letter or digit"

var validVolume = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,127}$`)

// ValidVolume reports whether s can be the name of a volume that holds user files.
func ValidVolume(s string) bool { return validVolume.MatchString(s) }

// dataRoles are the roles of volumes that hold user files.
var dataRoles = []string{RoleWorkspace, RoleRWCopy, RoleFork, RoleImage}

// IsData reports whether a volume is ours and holds user files: it can be listed, attached
// and deleted on request.
func IsData(name string, labels map[string]string) bool {
	return OurName(name) && ValidVolume(name) && Is(labels, dataRoles...)
}

// ReservedID reports whether an otherwise valid ID would make the name of a
// workspace volume collide with another kind of object.
func ReservedID(id string) bool {
	for _, p := range []string{"pending.", "guest-", "snap-"} {
		if strings.HasPrefix(id, p) {
			return true
		}
	}
	return strings.Contains(id, ".rev-") || derived.MatchString(id)
}

// derived matches what VolumeName appends to the ID.
var derived = regexp.MustCompile(`-(rwcopy|fork|image)-[a-z2-7]{12}$`)

const objects = "agent-sandbox-"

// ContainerName is the name of a sandbox's container: the lock on the sandbox's name.
func ContainerName(name string) string { return objects + name }

// NameOf is the inverse of ContainerName.
func NameOf(container string) (name string, ok bool) {
	name, ok = strings.CutPrefix(container, objects)
	return name, ok && ValidName(name)
}

// NextName is the name of the container that is about to replace a sandbox's. It can't be
// another sandbox's name: those are lower-case.
func NextName(name string) string { return ContainerName(name) + ".N" }

// UnfinishedName is the name of the replacement while its files are still being copied.
func UnfinishedName(name string) string { return ContainerName(name) + ".U" }

// WorkspaceName is the name of a sandbox's workspace volume.
func WorkspaceName(id string) string { return objects + id }

// VolumeName is the name of a sandbox's volume for a target other than the workspace. The
// nonce sets it apart from a preserved volume of the same ID and target; if that is to be
// adopted, it is empty.
func VolumeName(id, role, target, nonce string) string {
	sum := sha256.Sum256([]byte(target + "\x00" + nonce))
	return objects + id + "-" + role + "-" + encoding.EncodeToString(sum[:])[:12]
}

// OurName reports whether an object's name is one that this package could have chosen.
func OurName(object string) bool { return strings.HasPrefix(object, objects) }

var encoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// NewID returns a random ID: 12 base32 characters, 60 bits.
func NewID() string {
	var b [8]byte
	rand.Read(b[:])
	return encoding.EncodeToString(b[:])[:12]
}

// NewNonce returns a random value that marks the objects of one operation.
func NewNonce() string {
	var b [16]byte
	rand.Read(b[:])
	return encoding.EncodeToString(b[:])
}

// Sandbox is a sandbox's record as it was created. The engine stores environment and limits
// itself, so they are read from the container and not repeated here. The only secret in it
// is the control key, which never enters the sandbox.
type Sandbox struct {
	ID, Name   string
	Nonce      string
	CreatedAt  time.Time
	Tags       map[string]string
	ControlKey []byte // Ed25519 seed
	Persistent bool
	Settings   SandboxSettings
	// By is the nonce of the change that replaced the Previous container with this one. Both
	// are empty for the container made with the sandbox.
	By, Previous string
	Revision     Revision // the changes since; Tags include it already
	// Problem names the labels that could not be read. Such a sandbox can still be listed,
	// stopped and deleted.
	Problem error
}

// SandboxSettings is the JSON of the record label.
type SandboxSettings struct {
	// Network is the network policy in its textual form.
	Network string `json:"network,omitempty"`

	Image         string   `json:"image,omitempty"`
	Runtime       string   `json:"runtime,omitempty"`
	User          string   `json:"user,omitempty"`
	Workdir       string   `json:"workdir,omitempty"`
	Command       []string `json:"command,omitempty"`
	Ports         []uint16 `json:"ports,omitempty"`
	TimeoutMS     int64    `json:"timeout_ms,omitempty"`
	StopTimeoutMS int64    `json:"stop_timeout_ms,omitempty"`
	Idle          *Idle    `json:"idle,omitempty"`
	Mounts        []Mount  `json:"mounts,omitempty"`
	// Declared are the volumes for those directories that the image declares as volumes.
	Declared []Mount `json:"declared,omitempty"`
	// Snapshot is the ID of the snapshot that the sandbox was made from, or rolled back to since.
	Snapshot string `json:"snapshot,omitempty"`
	// ForkOf is the ID of the sandbox that it was forked from, empty after a rollback.
	ForkOf string `json:"fork_of,omitempty"`
	// Source describes where the first files came from, for display.
	Source        string   `json:"source,omitempty"`
	Env           string   `json:"env,omitempty"` // the ID of the revisions' Env that the container has
	NewPrivileges bool     `json:"new_privileges,omitempty"`
	StorageBytes  int64    `json:"storage_bytes,omitempty"` // limit of the container's own layer
	GPUs          []string `json:"gpus,omitempty"`
	// Pooled says that the sandbox was created for a pool. Its name is that of its container, which the
	// pool renames when it hands the sandbox over with a name. The labels have the name from before.
	Pooled bool `json:"pooled,omitempty"`
	// Guest is the directory of the guest in the container.
	Guest string `json:"guest,omitempty"`
	// Links are symbolic links of the image on the way to the files that the engine reads or mounts
	// at each start, and LinkedFiles where they lead. Most images have none.
	Links       []string `json:"links,omitempty"`
	LinkedFiles []string `json:"linked_files,omitempty"`
	// Rollback is set if the container was made by one. It only matters until the container has
	// its sandbox's name.
	Rollback *Rollback `json:"rollback,omitempty"`
}

// Rollback says which volumes get the files of a snapshot when a container takes the place of
// its sandbox's. They have all of them once it has the sandbox's name.
type Rollback struct {
	Snapshot string   `json:"snapshot"`
	Refills  []Refill `json:"refills"`
}

// Refill names a volume with files of a snapshot, and the volume whose files they replace.
type Refill struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Mount is a mount as it was requested. With both Source and Volume, the volume holds a
// copy of the source.
type Mount struct {
	Source string `json:"source,omitempty"`
	Volume string `json:"volume,omitempty"`
	Target string `json:"target"`
	// As is the target as it was requested, if that leads to Target by symbolic links of the image.
	As     string `json:"as,omitempty"`
	Mode   string `json:"mode"`
	Remote bool   `json:"remote,omitempty"` // Source is a path of the engine's machine

	// Existing says that a sandbox has the mount already: it is not compared with the
	// files of this machine again, which may be another one.
	Existing bool `json:"-"`
	// Declared says that the image, and not the caller, wants a volume there. It is a copy
	// without a source.
	Declared bool `json:"-"`
}

// storedSettings is the JSON of a sandbox's record label. The engine merges the labels of the
// image into those of the container, so the record lists which labels are its tags.
type storedSettings struct {
	SandboxSettings
	TagKeys []string `json:"tags"`
}

// Labels encodes r for its container. They include every label that Decode reads, because
// the container also gets the labels of its image. See [Mask] for the rest of those.
func (r Sandbox) Labels() (map[string]string, error) {
	settings, err := json.Marshal(storedSettings{r.Settings, slices.Sorted(maps.Keys(r.Tags))})
	if err != nil {
		return nil, err
	}
	l := Base(RoleSandbox, r.Nonce, r.CreatedAt)
	l[ID], l[Name] = r.ID, r.Name
	l[Persistent] = fmt.Sprint(r.Persistent)
	l[Settings] = string(settings)
	l[ControlKey] = encoding.EncodeToString(r.ControlKey)
	l[By], l[After] = r.By, r.Previous // also if empty: else those of the image would count
	if r.Settings.Rollback != nil {
		l[Snapshot] = r.Settings.Rollback.Snapshot
	}
	for k, v := range r.Tags {
		l[tag+k] = v
	}
	return l, checkSize(l)
}

// Mask sets those labels of an image that look like ours, and that labels lacks, to an empty
// value. Otherwise the engine would give them to the object that it makes from the image, and
// its label filters would match them.
func Mask(labels, image map[string]string) {
	for k := range image {
		if _, set := labels[k]; !set && strings.HasPrefix(k, prefix) {
			labels[k] = ""
		}
	}
}

// checkSize reports labels that exceed MaxLabels.
func checkSize(labels map[string]string) error {
	size := 0
	for k, v := range labels {
		size += len(k) + len(v)
	}
	if size > MaxLabels {
		return fmt.Errorf("the record takes %d bytes of labels, more than %d: shorten tags, environment or command", size, MaxLabels)
	}
	return nil
}

// Base returns the labels common to all our objects.
func Base(role, nonce string, at time.Time) map[string]string {
	return map[string]string{
		Managed:   "true",
		schema:    schemaVersion,
		Role:      role,
		Nonce:     nonce,
		CreatedAt: at.UTC().Format(time.RFC3339Nano),
	}
}

// VolumeLabels returns the labels of a volume that belongs to r.
func (r Sandbox) VolumeLabels(role string) map[string]string {
	l := Base(role, r.Nonce, r.CreatedAt)
	l[ID], l[Name] = r.ID, r.Name
	l[Persistent] = fmt.Sprint(r.Persistent)
	return l
}

// Decode reads a sandbox's record from its container's labels. ok is false when they
// are not a sandbox's. Unknown labels are ignored and damaged ones reported in Problem, so
// that one bad record never hides the others.
func Decode(labels map[string]string) (r Sandbox, ok bool) {
	if labels[Managed] != "true" || labels[Name] == "" || labels[ID] == "" {
		return r, false
	}
	if role := labels[Role]; role != "" && role != RoleSandbox {
		return r, false
	}
	r = Sandbox{ID: labels[ID], Name: labels[Name], Nonce: labels[Nonce], Persistent: labels[Persistent] != "false"}
	r.By, r.Previous = labels[By], labels[After]
	var problems []error
	note := func(key string, err error) {
		if err != nil {
			problems = append(problems, fmt.Errorf("label %s: %w", key, err))
		}
	}
	if s := labels[CreatedAt]; s != "" {
		t, err := time.Parse(time.RFC3339Nano, s)
		note(CreatedAt, err)
		r.CreatedAt = t
	}
	var stored storedSettings
	if s := labels[Settings]; s != "" {
		err := json.Unmarshal([]byte(s), &stored)
		note(Settings, err)
		if err != nil {
			stored = storedSettings{}
		}
		r.Settings = stored.SandboxSettings
	}
	if s := labels[ControlKey]; s != "" {
		key, err := encoding.DecodeString(s)
		note(ControlKey, err)
		r.ControlKey = key
	}
	for k, v := range labels {
		key, is := strings.CutPrefix(k, tag)
		if is && slices.Contains(stored.TagKeys, key) {
			if r.Tags == nil {
				r.Tags = map[string]string{}
			}
			r.Tags[key] = v
		}
	}
	r.Problem = errors.Join(problems...)
	return r, true
}

// Is reports whether labels mark an object of ours with one of the roles.
func Is(labels map[string]string, roles ...string) bool {
	return labels[Managed] == "true" && slices.Contains(roles, labels[Role])
}

// Filter formats a label for the engine's list filters.
func Filter(key, value string) string { return key + "=" + value }

// With returns a copy of l with one more label.
func With(l map[string]string, key, value string) map[string]string {
	l = maps.Clone(l)
	l[key] = value
	return l
}

// GuestName is the name of the volume that holds the guest with this content hash.
func GuestName(hash string) string { return objects + "guest-" + hash }

// GuestImage is the image that the guest's volume is filled from.
func GuestImage(hash string) string { return guestImages + hash }

const guestImages = "agent-sandbox-guest:"

// IsOwnImage reports whether a repository, as engine.Repository returns it, has images that this
// library makes for itself.
func IsOwnImage(repository string) bool {
	return slices.Contains([]string{guestImages, layerImages, snapshotImages}, repository+":")
}

// LayerImage is the image that carries a container's files to its replacement.
func LayerImage(nonce string) string { return layerImages + nonce }

const layerImages = "agent-sandbox-layer:"

// IsLayer reports whether a reference is one that LayerImage makes.
func IsLayer(ref string) bool { return strings.HasPrefix(ref, layerImages) }

// SnapshotName is the name of the volume that records a snapshot: the snapshot exists while
// it does.
func SnapshotName(id string) string { return objects + "snap-" + id }

// FrozenName is the name of the nth volume with a snapshot's files.
func FrozenName(id string, n int) string { return fmt.Sprintf("%s-%d", SnapshotName(id), n) }

// SnapshotImage is the image of containers made from a snapshot.
func SnapshotImage(id string) string { return snapshotImages + id }

const snapshotImages = "agent-sandbox-snapshot:"

// SnapshotOfImage is the inverse of SnapshotImage.
func SnapshotOfImage(ref string) (id string, ok bool) {
	id, ok = strings.CutPrefix(ref, snapshotImages)
	return id, ok && ValidName(id)
}

// SnapshotMarker is the name of the marker held while a snapshot is made or deleted, or its
// files are used without a record. Names of sandboxes are lower-case.
func SnapshotMarker(id string) string { return id + ".S" }

// SnapshotOf returns the ID of the snapshot that a marker protects.
func (m Marker) SnapshotOf() (id string, ok bool) {
	id, ok = strings.CutSuffix(m.Name, ".S")
	return id, ok && ValidName(id)
}

// OverlayNames are the names of the volumes with the upper and work directory of a volume
// that overlays a snapshot's files.
func OverlayNames(volume string) (upper, work string) { return volume + ".U", volume + ".W" }

// OverlayOf returns the volume that one of OverlayNames belongs to.
func OverlayOf(name string) (volume string, ok bool) {
	if volume, ok = strings.CutSuffix(name, ".U"); ok {
		return volume, true
	}
	return strings.CutSuffix(name, ".W")
}

// SnapshotRecord is the record of a snapshot. Its label holds it as JSON.
type SnapshotRecord struct {
	ID        string    `json:"-"`
	Nonce     string    `json:"-"`
	CreatedAt time.Time `json:"-"`
	Name      string    `json:"name,omitempty"`
	Sandbox   string    `json:"sandbox"`
	SandboxID string    `json:"sandbox_id"`
	Parent    string    `json:"parent,omitempty"`
	ExpiresAt time.Time `json:"expires_at,omitzero"`
	Size      int64     `json:"size"`
	Image     string    `json:"image"`
	ImageID   string    `json:"image_id,omitempty"` // unless an image was committed for the snapshot
	User      string    `json:"user,omitempty"`
	Trees     []Tree    `json:"trees"`
}

// Tree is one directory of a snapshot.
type Tree struct {
	Target string `json:"target,omitempty"` // empty is the container's own layer
	Source string `json:"source,omitempty"` // the directory on the caller's machine that it was copied from, if any
	Volume string `json:"volume"`
	// Declared is that of the mount.
	Declared bool   `json:"declared,omitempty"`
	Mode     uint32 `json:"mode"`
	UID      uint32 `json:"uid"`
	GID      uint32 `json:"gid"`
	Mtime    int64  `json:"mtime"` // in nanoseconds
	// Xattrs says that the directory itself has extended attributes.
	Xattrs bool `json:"xattrs,omitempty"`
}

// Labels encodes r for its volume.
func (r SnapshotRecord) Labels() (map[string]string, error) {
	text, err := json.Marshal(r)
	l := Base(roleSnapshot, r.Nonce, r.CreatedAt)
	l[ID], l[Settings] = r.ID, string(text)
	return l, err
}

// DecodeSnapshot reads a volume as the record of a snapshot.
func DecodeSnapshot(name string, labels map[string]string) (r SnapshotRecord, ok bool) {
	id := labels[ID]
	if !Is(labels, roleSnapshot) || !ValidName(id) || name != SnapshotName(id) || json.Unmarshal([]byte(labels[Settings]), &r) != nil {
		return r, false
	}
	r.ID, r.Nonce = id, labels[Nonce]
	r.CreatedAt, _ = time.Parse(time.RFC3339Nano, labels[CreatedAt])
	return r, true
}

// FrozenLabels returns the labels of a volume with files of r.
func (r SnapshotRecord) FrozenLabels() map[string]string {
	l := Base(RoleFrozen, r.Nonce, r.CreatedAt)
	l[ID], l[Name] = r.ID, r.Sandbox
	return l
}

// HelperName is the name of a helper container.
func HelperName(nonce string) string { return objects + "helper." + nonce[:12] + ".H" }

// HelperMarker is the name of the marker of a helper that serves no other operation. Names of
// sandboxes are lower-case.
func HelperMarker(nonce string) string { return nonce[:12] + ".H" }

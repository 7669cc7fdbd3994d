// Package record knows what is stored in the engine and where: the labels that
// describe a sandbox and its volumes, the names of the objects that carry them, and
// the pending marker that makes one creator of many.
//
// Labels can't be changed once an object exists. Everything mutable is therefore a
// new object, and who comes first is decided by the engine: creating a volume whose
// name exists returns the old one with its old labels.
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
	"strings"
	"time"
)

// Label keys. They are a public contract, documented in the root's doc.go.
const (
	Prefix     = "agent-sandbox."
	Managed    = Prefix + "managed"
	Schema     = Prefix + "schema"
	ID         = Prefix + "id"
	Name       = Prefix + "name"
	Role       = Prefix + "role"
	CreatedAt  = Prefix + "created-at"
	CreatedBy  = Prefix + "created-by"
	Source     = Prefix + "source"
	Nonce      = Prefix + "nonce"
	Persistent = Prefix + "persistent"
	Until      = Prefix + "until"
	Holder     = Prefix + "holder"
	Settings   = Prefix + "record"
	ControlKey = Prefix + "control-key"
	Of         = Prefix + "of"    // of a revision: the nonce of its sandbox
	After      = Prefix + "after" // of a revision: the nonce of the one before
	tag        = Prefix + "tag."
)

// SchemaVersion is what this build writes. It reads any.
const SchemaVersion = "1"

// Values of the Role label.
const (
	RoleSandbox   = "sandbox"
	RoleWorkspace = "workspace"
	RoleRWCopy    = "rwcopy"
	RoleFork      = "fork"
	RolePending   = "pending"
	RoleTakeover  = "takeover"
	RoleGuest     = "guest"
	RoleHelper    = "helper"
	RoleRevision  = "revision"
)

// MaxLabels bounds what one object may carry in its labels, keys and values
// together. The engine itself takes megabytes, but returns them in every list.
const MaxLabels = 64 << 10

var valid = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,62}$`)

// NameRule is the rule for names and IDs, for messages.
const NameRule = "1 to 63 of a-z 0-9 _ . - and first a letter or digit"

// ValidName reports whether s can be the name or the ID of a sandbox.
func ValidName(s string) bool { return valid.MatchString(s) }

// VolumeRule is the rule for names of volumes, for messages.
const VolumeRule = "1 to 128 of a-z 0-9 _ . - and first a letter or digit"

var validVolume = regexp.MustCompile(`^[a-z0-9][a-z0-9_.-]{0,127}$`)

// ValidVolume reports whether s can be the name of a volume that holds somebody's files.
func ValidVolume(s string) bool { return validVolume.MatchString(s) }

// dataRoles are those of the volumes that hold somebody's files. A volume without a role
// is a workspace of before there were roles.
var dataRoles = []string{RoleWorkspace, RoleRWCopy, RoleFork}

// IsData reports whether a volume is ours and holds somebody's files: it is listed,
// attached and deleted on request.
func IsData(name string, labels map[string]string) bool {
	if !OurName(name) || !ValidVolume(name) || labels[Managed] != "true" {
		return false
	}
	return labels[Role] == "" || Is(labels, dataRoles...)
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

// derived is how the name of a volume that VolumeName made goes on after the ID.
var derived = regexp.MustCompile(`-(rwcopy|fork)-[a-z2-7]{12}$`)

const objects = "agent-sandbox-"

// ContainerName is the name of a sandbox's container: the lock on the sandbox's name.
func ContainerName(name string) string { return objects + name }

// WorkspaceName is the name of a sandbox's workspace volume.
func WorkspaceName(id string) string { return objects + id }

// VolumeName is the name of a sandbox's volume for a target other than the workspace. The
// nonce keeps it from one of the same ID and target that was preserved.
func VolumeName(id, role, target, nonce string) string {
	sum := sha256.Sum256([]byte(target + "\x00" + nonce))
	return objects + id + "-" + role + "-" + encoding.EncodeToString(sum[:])[:12]
}

// OurName reports whether an object's name is one that this package could have given.
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

// Sandbox is a sandbox's record as it was created. What the engine holds itself
// (environment, limits) is read from the container and not repeated here; neither is
// anything secret but the control key, which never enters the sandbox.
type Sandbox struct {
	ID, Name   string
	Nonce      string
	CreatedAt  time.Time
	Tags       map[string]string
	ControlKey []byte // Ed25519 seed
	Persistent bool
	Settings   SandboxSettings
	Revision   Revision // what has changed since; Tags have it already
	// Problem says what of the labels could not be read. Such a sandbox can still be
	// listed, stopped and deleted.
	Problem error
}

// SandboxSettings is the JSON of the record label.
type SandboxSettings struct {
	Image         string   `json:"image,omitempty"`
	Runtime       string   `json:"runtime,omitempty"`
	User          string   `json:"user,omitempty"`
	Workdir       string   `json:"workdir,omitempty"`
	Command       []string `json:"command,omitempty"`
	Ports         []uint16 `json:"ports,omitempty"`
	TimeoutMS     int64    `json:"timeout_ms,omitempty"`
	StopTimeoutMS int64    `json:"stop_timeout_ms,omitempty"`
	Mounts        []Mount  `json:"mounts,omitempty"`
}

// Mount is a mount as it was asked for. With both a source and a volume it is a copy of
// the one in the other.
type Mount struct {
	Source string `json:"source,omitempty"`
	Volume string `json:"volume,omitempty"`
	Target string `json:"target"`
	Mode   string `json:"mode"`
}

// Labels encodes r for its container.
func (r Sandbox) Labels() (map[string]string, error) {
	settings, err := json.Marshal(r.Settings)
	if err != nil {
		return nil, err
	}
	l := Base(RoleSandbox, r.Nonce, r.CreatedAt)
	l[ID], l[Name] = r.ID, r.Name
	l[Persistent] = fmt.Sprint(r.Persistent)
	l[Settings] = string(settings)
	l[ControlKey] = encoding.EncodeToString(r.ControlKey)
	for k, v := range r.Tags {
		l[tag+k] = v
	}
	var size int
	for k, v := range l {
		size += len(k) + len(v)
	}
	if size > MaxLabels {
		return nil, fmt.Errorf("the record takes %d bytes of labels, more than %d: shorten tags or command", size, MaxLabels)
	}
	return l, nil
}

// Base returns the labels that every object of ours carries.
func Base(role, nonce string, at time.Time) map[string]string {
	return map[string]string{
		Managed:   "true",
		Schema:    SchemaVersion,
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
// are not a sandbox's at all. Unknown labels are ignored and damaged ones reported in
// Problem, so that one bad record never hides the others.
func Decode(labels map[string]string) (r Sandbox, ok bool) {
	// Before roles existed only sandboxes had containers, so no role is a sandbox.
	if labels[Managed] != "true" || labels[Name] == "" || labels[ID] == "" {
		return r, false
	}
	if role := labels[Role]; role != "" && role != RoleSandbox {
		return r, false
	}
	r = Sandbox{ID: labels[ID], Name: labels[Name], Nonce: labels[Nonce], Persistent: labels[Persistent] != "false"}
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
	if s := labels[Settings]; s != "" {
		err := json.Unmarshal([]byte(s), &r.Settings)
		note(Settings, err)
		if err != nil {
			r.Settings = SandboxSettings{}
		}
	}
	if s := labels[ControlKey]; s != "" {
		key, err := encoding.DecodeString(s)
		note(ControlKey, err)
		r.ControlKey = key
	}
	for k, v := range labels {
		if key, is := strings.CutPrefix(k, tag); is {
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
	if labels[Managed] != "true" {
		return false
	}
	for _, role := range roles {
		if labels[Role] == role {
			return true
		}
	}
	return false
}

// Filter is a label as the engine's list filters take it.
func Filter(key, value string) string { return key + "=" + value }

// With returns l with one more label.
func With(l map[string]string, key, value string) map[string]string {
	l = maps.Clone(l)
	l[key] = value
	return l
}

// GuestName is the name of the volume that holds the guest, by its content.
func GuestName(hash string) string { return objects + "guest-" + hash }

// GuestImage is the image that the guest's volume is filled from.
func GuestImage(hash string) string { return "agent-sandbox-guest:" + hash }

// HelperName is the name of a container that does something for a sandbox.
func HelperName(nonce string) string { return objects + "helper." + nonce[:12] + ".H" }

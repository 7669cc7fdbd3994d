package engine

import (
	"regexp"

	"github.com/distribution/reference"
)

var (
	nameRE    = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]*$`)
	imageIDRE = regexp.MustCompile(`^(?:sha256:)?[0-9a-f]{12,64}$`)
)

// checkName guards against path traversal: the Docker client cleans paths, so a volume
// called "../containers/x" would reach the container x.
func checkName(kind, name string) error {
	if nameRE.MatchString(name) {
		return nil
	}
	return invalid("%s %q: want letters, digits, '_', '.' and '-', the first a letter or digit", kind, name)
}

// CheckImage accepts an image reference or an image ID.
func CheckImage(ref string) error {
	if imageIDRE.MatchString(ref) {
		return nil
	}
	if _, err := reference.ParseNormalizedNamed(ref); err != nil {
		return &classed{class: ErrInvalid, text: "image " + quote(ref) + ": " + err.Error(), err: err}
	}
	return nil
}

// IsTag reports whether an image reference is a tag, "latest" if it has none, and not a digest or an ID.
// The beginning of an ID is taken for a tag: it may be one.
func IsTag(ref string) bool {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return false
	}
	_, digested := named.(reference.Digested)
	return !digested
}

// Repository returns the repository of an image reference in its short form, such as "node"
// for "docker.io/library/node:20", and nothing for an image ID.
func Repository(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || imageIDRE.MatchString(ref) {
		return ""
	}
	return reference.FamiliarName(named)
}

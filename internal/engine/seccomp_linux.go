package engine

import (
	"encoding/json"

	"github.com/moby/profiles/seccomp"
)

func defaultSeccomp() (string, error) {
	profile, err := json.Marshal(seccomp.DefaultProfile())
	return "seccomp=" + string(profile), err
}

package sandboxhttp

import (
	_ "embed"
	"net/http"
)

//go:embed openapi.json
var openAPI []byte

func serveOpenAPI(w http.ResponseWriter, _ *http.Request) error {
	answerBody(w, http.StatusOK, openAPI)
	return nil
}

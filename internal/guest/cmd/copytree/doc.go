// Package copytree copies file trees between mounts with all their attributes, makes them
// of a stream, packs and unpacks archives, and adds up their sizes.
package copytree

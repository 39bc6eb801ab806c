package cri

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

// PauseImage is the image that every Runtime has, under a name that no registry answers
// for. It has one program, which waits.
const PauseImage = "holdfast.test/pause:1"

// WriteImage writes an OCI image archive with one program, a static one, that ctr and
// podman can both load: "/" and the program's own name are its entry point. No
// compression: the layer's digest is then its diff ID.
func WriteImage(path, name, program string) error {
	base := filepath.Base(program)
	binary, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	layer, err := tarOf([]file{{name: base, mode: 0o755, content: binary}})
	if err != nil {
		return err
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": object{"Entrypoint": []string{"/" + base}, "WorkingDir": "/"},
		"rootfs": object{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return err
	}
	descriptor := func(mediaType string, b []byte) object {
		return object{"mediaType": mediaType, "digest": digest(b), "size": len(b)}
	}
	const oci = "application/vnd.oci.image."
	manifest, err := json.Marshal(object{
		"schemaVersion": 2, "mediaType": oci + "manifest.v1+json",
		"config": descriptor(oci+"config.v1+json", config),
		"layers": []object{descriptor(oci+"layer.v1.tar", layer)},
	})
	if err != nil {
		return err
	}
	entry := descriptor(oci+"manifest.v1+json", manifest)
	entry["platform"] = object{"architecture": runtime.GOARCH, "os": "linux"}
	entry["annotations"] = object{
		"io.containerd.image.name":          name, // read by containerd
		"org.opencontainers.image.ref.name": name, // read by podman
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []object{entry}})
	if err != nil {
		return err
	}
	blob := func(b []byte) file { return file{name: "blobs/sha256/" + digest(b)[len("sha256:"):], content: b} }
	archive, err := tarOf([]file{
		{name: "oci-layout", content: []byte(`{"imageLayoutVersion":"1.0.0"}`)},
		{name: "index.json", content: index},
		blob(manifest), blob(config), blob(layer),
	})
	if err != nil {
		return err
	}
	return os.WriteFile(path, archive, 0o644)
}

type file struct {
	name    string
	mode    int64 // 0644 when 0
	content []byte
}

func tarOf(files []file) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		if f.mode == 0 {
			f.mode = 0o644
		}
		h := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content))}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// Package archive makes the container image, without a container engine and without a
// registry: it builds the programs and writes an OCI image layout as a tar file.
//
// Scope: what is in the image, and that the same sources give the same bytes. Non-scope:
// pushing it (any tool that reads an OCI layout does), and how it is deployed (deploy/).
package archive

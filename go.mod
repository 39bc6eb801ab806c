module github.com/holdfast-cni/holdfast

go 1.26.0

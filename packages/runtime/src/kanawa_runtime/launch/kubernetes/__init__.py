"""Kubernetes JobSets: on GKE and EKS, with TPUs, GPUs and Trainium, queued by Kueue, or under Pathways."""

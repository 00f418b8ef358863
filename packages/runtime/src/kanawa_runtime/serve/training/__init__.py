"""Training over HTTP, by the protocol of the public `tinker` client: LoRA of several tenants on one base model."""

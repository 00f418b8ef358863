"""Ray: a gang of actors, one a host, each with a process of the job; a detached actor keeps them going."""

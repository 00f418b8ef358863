"""Records of files: what examples of text, chats, pairs and tasks are made of."""

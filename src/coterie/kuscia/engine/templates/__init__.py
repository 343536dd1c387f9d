"""Config rendering: an engine's configuration files, from the templates of its AppImage and what is known of its pod."""

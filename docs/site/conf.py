"""Sphinx's settings for the site that docs/site/build.py makes of the pages."""

project = "Lockstep"
extensions = ["myst_parser"]
root_doc = "README"
source_suffix = {".md": "markdown"}
exclude_patterns = ["**/pictures/**"]
myst_heading_anchors = 3  # links to headings are checked, as GitHub makes them
myst_enable_extensions = ["attrs_inline"]
highlight_language = "none"
html_theme = "furo"
html_title = "Lockstep"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_theme_options = {"navigation_with_keys": True}

"""Bundles: the selected files, their hashes, the delta and the archive. Also reads contents of pickles.

Intentionally empty. Nodes run `archive`, `manifest` and `scan` with only the standard library, so this
package must not import anything that only clients have.
"""

"""Settings and their sources: flags > environment > project file > user file > default.

`table` lists the settings, and `reading` finds and checks their values. Every command imports this package,
so parsers are loaded on use.
"""

from __future__ import annotations

from windlass.settings.reading import read_duration as read_duration
from windlass.settings.reading import read_settings as read_settings
from windlass.settings.reading import read_settings_here as read_settings_here
from windlass.settings.reading import start_folder as start_folder
from windlass.settings.table import SETTINGS as SETTINGS
from windlass.settings.table import NodeRange as NodeRange
from windlass.settings.table import Setting as Setting
from windlass.settings.table import Settings as Settings

import ipaddress
import keyword
import platform

print([getattr(one, "IS_OURS", False) for one in (platform, ipaddress, keyword)])

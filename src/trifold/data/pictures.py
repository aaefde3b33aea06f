"""Former names of trifold.data.images."""

from trifold.data.images import Filter
from trifold.data.images import ImageSettings as PictureSettings
from trifold.data.images import read_image as read_picture

__all__ = ["Filter", "PictureSettings", "read_picture"]

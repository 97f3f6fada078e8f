"""Names of places: cities by their position and the reverse, and airports by their codes."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from pytest_cloudbench.model import UsageError
from pytest_cloudbench.net.locate.sphere import Cap, Position, distance_km

_CITY_KM = 20.0
"""Largest distance from a city's center to a point in the city, except for the very largest cities."""
_LARGE_THOUSANDS = 300


class City(NamedTuple):
    """A city, and how many thousand people live there."""

    name: str
    country: str
    position: Position
    thousands: int


class Cities:
    """Cities, from a table that begins with the largest."""

    def __init__(self, text: str) -> None:
        self._rows = [*_parse_cities(text)]

    def find(self, name: str) -> City | None:
        """Return the largest city of a name, such as ``Oslo`` or ``Paris, US``."""
        city_name, _, country = (part.strip().casefold() for part in name.partition(","))
        return next(
            (
                city
                for city in self._rows
                if city.name.casefold() == city_name and country in ("", city.country.casefold())
            ),
            None,
        )

    def nearest(self, position: Position) -> tuple[City, float]:
        """Return a well-known city nearby, and its distance in km.

        This is the nearest large city, or the nearest of all cities if its distance is less than half.
        """
        near = [
            (distance_km(position, city.position), city)
            for city in self._rows
            if abs(city.position.latitude_deg - position.latitude_deg) < 15
        ] or [(distance_km(position, city.position), city) for city in self._rows]
        away_km, city = min(near)
        large_km, large = min([row for row in near if row[1].thousands >= _LARGE_THOUSANDS] or [(away_km, city)])
        return (city, away_km) if away_km < large_km / 2 else (large, large_km)

    def describe(self, cap: Cap) -> str:
        """Return a region in words: ``within 180 km of Oslo``. Every point of the cap is in the stated region."""
        city, away_km = self.nearest(cap.center)
        if away_km <= max(10.0, 0.05 * cap.radius_km):
            return f"within {ceil(cap.radius_km + away_km)} km of {city.name}"
        latitude, longitude = cap.center
        return f"within {ceil(cap.radius_km)} km of {latitude:.2f},{longitude:.2f} ({away_km:.0f} km from {city.name})"


def parse_place(text: str, cities: Cities, where: str) -> Cap:
    """Read where a vantage point is: ``59.91,10.75``, or a city such as ``Oslo``. Raises UsageError."""
    parts = text.split(",")
    try:
        latitude, longitude = (float(part) for part in parts)
    except ValueError:
        city = cities.find(text)
        if city is None:
            raise UsageError(f"{where}: {text!r}: expected a city, or degrees such as 59.91,10.75") from None
        return Cap(city.position, _CITY_KM)
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise UsageError(f"{where}: {text!r}: expected degrees north and east, such as 59.91,10.75")
    return Cap(Position(latitude, longitude), 0.0)


class Airports:
    """Positions of airports and their cities by IATA code in lower case."""

    def __init__(self, text: str) -> None:
        rows = (line.split("\t") for line in text.splitlines())
        self._rows = {code: (city, Position(float(north), float(east))) for code, north, east, city in rows}

    def find(self, code: str) -> tuple[str, Position] | None:
        """Return the city and the position of an airport, or None."""
        return self._rows.get(code.lower())


def _parse_cities(text: str) -> Iterator[City]:
    for line in text.splitlines():
        name, country, north, east, thousands = line.split("\t")
        yield City(name, country, Position(float(north), float(east)), int(thousands))

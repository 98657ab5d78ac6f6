"""Tweets to six airlines with their sentiment (CrowdFlower, 2015), in place of Sent140."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from evenhand.data.deal import deal
from evenhand.data.federation import Federation
from evenhand.data.pool import Partition, Pool
from evenhand.data.storage.file import File, find, folder_of
from evenhand.data.storage.file import read as read_file
from evenhand.data.storage.locate import locate
from evenhand.data.text import WordVectors, glove
from evenhand.errors import DataError, require, require_choice

FILES = (
    File(
        "airline_tweets.csv.gz",
        content="sha256:0bea7325aa0688fd98a17885392d1c8e3ab595a6b393546842acf06d8036473c",
        hint=(
            'put Tweets.csv of Kaggle\'s "Twitter US Airline Sentiment" there, which has the same'
            " tweets"
        ),
    ),
)
KAGGLE = File("Tweets.csv")
LABELS = ("negative", "neutral", "positive")
COLUMNS = ("airline", "airline_sentiment", "tweet_created", "text")
DATE = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)\b|(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})\b"
)


def airline_sentiment(
    partition: str | Mapping[str, Any] | Partition | None = None,
    split: str | Mapping[str, Any] | None = None,
    seed: int = 0,
    clients: int | None = None,
    root: Path | str | None = None,
    by: str = "airline",
    binary: bool = False,
    distinct: bool = False,
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
) -> Federation:
    """Load 14,640 tweets to six airlines as word codes; the label is negative, neutral or positive.

    The codes are those of ``evenhand.data.text.glove(root, dimensions, most)``; a model needs its
    ``vectors``.

    Args:
        by: "airline" makes each airline a client; "day" makes the tweets of one day to one airline
            a client, with the airline as its team.
        binary: skip neutral tweets (11,541 remain); classes are then 0 negative, 1 positive.
        distinct: skip repeated tweets.
        dimensions: the size of the word vectors.
        most: the number of word vectors.
        length: words used of each tweet.
    """
    return deal(
        read(root, by, binary, distinct, dimensions, most, length), partition, split, seed, clients
    )


class Tweet(NamedTuple):
    """A row of the table."""

    airline: str
    sentiment: str
    day: str  # as 2015-02-24
    moment: str  # as the file writes it
    text: str


def read(
    root: Path | str | None = None,
    by: str = "airline",
    binary: bool = False,
    distinct: bool = False,
    dimensions: int = 100,
    most: int | None = None,
    length: int = 25,
) -> Pool:
    """Read all tweets; see ``airline_sentiment``."""
    folder = folder_of("airline_sentiment", root)
    file = (
        KAGGLE
        if find(FILES[0], [folder]) is None and find(KAGGLE, [folder]) is not None
        else FILES[0]
    )
    (path,) = locate("airline_sentiment", [file], root)
    return pool_of(
        tweets(path, read_file(path, file)),
        glove(root, dimensions, most),
        by,
        binary,
        distinct,
        length,
    )


def pool_of(
    rows: list[Tweet],
    vectors: WordVectors,
    by: str,
    binary: bool = False,
    distinct: bool = False,
    length: int = 25,
) -> Pool:
    """Return tweets as samples, with airlines or days as clients."""
    require_choice("by", by, ("airline", "day"))
    for name, value in (("binary", binary), ("distinct", distinct)):
        require(isinstance(value, bool), "{} must be true or false, got {!r}", name, value)
    labels = tuple(label for label in LABELS if label != "neutral" or not binary)
    rows = [row for row in (dict.fromkeys(rows) if distinct else rows) if row.sentiment in labels]
    clients = [row.airline if by == "airline" else f"{row.airline} {row.day}" for row in rows]
    names, client = np.unique(clients, return_inverse=True)
    airlines, airline = np.unique([row.airline for row in rows], return_inverse=True)
    teams = np.zeros(len(names), dtype=np.int64)
    teams[client] = airline
    return Pool(
        x=vectors.encode((row.text for row in rows), length),
        y=torch.tensor([labels.index(row.sentiment) for row in rows]),
        label_names=labels,
        client=torch.from_numpy(client.astype(np.int64)),
        client_names=tuple(names.tolist()),
        team=torch.from_numpy(teams) if by == "day" else None,
        team_names=tuple(airlines.tolist()) if by == "day" else (),
    )


def tweets(path: Path, content: bytes) -> list[Tweet]:
    """Parse and check the rows of the table; row 1 is the first after the header."""
    try:
        lines = csv.reader(io.StringIO(content.decode(), newline=""), strict=True)
        header = next(lines, [])
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            raise DataError(
                f"{path} has no column {missing[0]!r} in its first line; it needs"
                f" {', '.join(COLUMNS)}"
            )
        places = [header.index(column) for column in COLUMNS]
        rows = [
            _tweet(path, number, line, places, len(header))
            for number, line in enumerate(lines, start=1)
        ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is damaged: {error}") from error
    if not rows:
        raise DataError(f"{path} has no tweets, only a header")
    return rows


def _tweet(path: Path, number: int, line: list[str], places: list[int], width: int) -> Tweet:
    if len(line) != width:
        raise DataError(
            f"{path}, row {number}: {len(line)} fields instead of {width}; the file may be"
            " truncated, download it again"
        )
    airline, sentiment, moment, text = (line[place] for place in places)
    if sentiment not in LABELS:
        raise DataError(
            f"{path}, row {number}: unknown label {sentiment!r}; sentiments are {', '.join(LABELS)}"
        )
    if not airline or not text.strip():
        raise DataError(
            f"{path}, row {number}: {'the text' if airline else 'the airline'} is missing"
        )
    date = DATE.match(moment)
    if date is None:
        raise DataError(
            f"{path}, row {number}: tweet_created is {moment!r}; it should begin with a date such"
            " as 2015-02-24 or 2/24/2015"
        )
    year, month, day = (
        int(date[long] or date[short])
        for long, short in (("year", "y"), ("month", "m"), ("day", "d"))
    )
    return Tweet(airline, sentiment, f"{year}-{month:02}-{day:02}", moment, text)

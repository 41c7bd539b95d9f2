"""The tokens in the cluster's store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from tocsin.serving import tokens
from tocsin.serving.tokens import Token
from tocsin.store.cluster.interface import ClusterStore, TokenRow
from tocsin.wire.errors import NotFoundError, UnauthorizedError


@dataclass(frozen=True, slots=True)
class StoredTokens:
    store: ClusterStore

    async def check(self, secret: str) -> Token:
        """Reads the store at each request, so that a revoked token is refused at once."""
        token_rows = await self.store.tokens()
        if not token_rows:
            raise UnauthorizedError("this cluster has no tokens yet", hint=tokens.HOW_TO_MAKE)
        return tokens.check(secret, token_rows)

    async def create(self, name: str, role: str, feeds: Sequence[str] = ()) -> tuple[TokenRow, str]:
        minted = tokens.mint(name, role, feeds)
        async with self.store.transaction() as tx:
            row = await tx.add_token(minted.name, minted.digest, minted.role, datetime.now(UTC), minted.feeds)
        return row, minted.secret

    async def list(self) -> Sequence[TokenRow]:
        return await self.store.tokens()

    async def revoke(self, identity: int) -> TokenRow:
        async with self.store.transaction() as tx:
            if not await tx.revoke_token(identity, datetime.now(UTC)):
                raise NotFoundError(f"there is no live token {identity}", hint="tocsin token list shows them")
        return next(row for row in await self.store.tokens() if row.id == identity)

"""Who is who in a cluster: its authorities, certificates, tokens and kubeconfigs, as files in one folder."""

from __future__ import annotations

import json
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

ADMINISTRATORS = "system:masters"
USERS = {
    "admin": ("admin", ADMINISTRATORS),
    "kcm": ("system:kube-controller-manager", ""),
    "scheduler": ("system:kube-scheduler", ""),
    # Not confined to its node: with the node authorizer the first pods wait half a minute.
    "kubelet": ("system:node:node-1", ADMINISTRATORS),
    "kube-proxy": ("system:kube-proxy", ""),
}


class Authority:
    """Makes the files the moment it is made. names: addresses of the API server, beside its usual names."""

    def __init__(self, folder: Path, url: str, names: tuple[str, ...]) -> None:
        self._folder, self._url = folder, url
        authority, front = trustme.CA(), trustme.CA()
        authority.cert_pem.write_to_path(folder / "ca.crt")
        front.cert_pem.write_to_path(folder / "front-proxy-ca.crt")
        usual = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self._write("apiserver", authority.issue_cert(*names, *usual))
        # What the API server shows to kubelets, for logs and exec. With a name, for Go refuses an empty list of them.
        as_client = authority.issue_cert(
            "kube-apiserver", common_name="kube-apiserver", organization_name=ADMINISTRATORS
        )
        self._write("kubelet-client", as_client)
        self._write("front-proxy", front.issue_cert("front-proxy-client", common_name="front-proxy-client"))
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "sa.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.TraditionalOpenSSL,
                serialization.NoEncryption(),
            )
        )
        (folder / "tokens.csv").write_text(
            "".join(f'{name}-token,{user},{name},"{group}"\n' for name, (user, group) in USERS.items())
        )
        for name in USERS:
            self.write_kubeconfig(name, f"{name}-token")

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig that logs in with this token."""
        path = self._folder / f"{name}.conf"
        cluster = {"server": self._url, "certificate-authority": str(self._folder / "ca.crt")}
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": cluster}],
                    "users": [{"name": name, "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
                }
            )
        )
        return path

    def _write(self, name: str, certificate: trustme.LeafCert) -> None:
        certificate.private_key_pem.write_to_path(self._folder / f"{name}.key")
        for number, pem in enumerate(certificate.cert_chain_pems):
            pem.write_to_path(self._folder / f"{name}.crt", append=number > 0)

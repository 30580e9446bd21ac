// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 for the rendezvous' port: certificates and keys from files. Sees only files.
#pragma once

#include <memory>
#include <string>

namespace ddprun::security {

struct FlaggedContext;                               // tls_context.h
using TlsContext = std::shared_ptr<FlaggedContext>;  // owners: all that use it

// Files of this user or of root, which nobody else can change.
struct TlsFiles {
  std::string cert;  // PEM: this side's certificate, then those between it and the authority
  std::string key;   // PEM; hidden from others, as a Secret's file
  std::string ca;    // PEM: authorities that the other side's certificate may come from
  bool verify_client = false;  // the server wants one of the client's
  // Prefix of the flags that name these: "--tls" for --tls-cert, --tls-key, --tls-ca. Each line
  // about a file, or about a peer that can't be trusted, names them so.
  std::string flags = "--tls";

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty() || verify_client; }
  bool operator==(const TlsFiles&) const = default;
};

// From now on OpenSSL wipes what it frees. A core file then has no trace of keys: their numbers are
// in its secure memory. Call it before all else of OpenSSL; later it does nothing.
void wipe_what_is_freed();

// Each throws Error(kInvalidArgument), one line that names flag and file. The file is missing,
// can't be read, is no regular file, or others can change it; or a key isn't the certificate's.
TlsContext make_server_context(const TlsFiles& files);
TlsContext make_client_context(const TlsFiles& files);

// For a program that serves what it would be a client of. It has the certificate and key of
// `client`, which are read once. Reading them is most of what a short job pays for TLS. Null: it
// has none.
TlsContext make_server_context(const TlsContext& client);

// Checks `client`'s own certificate as another client with this context would, were it a server's
// on `host`, a name or an address. Empty: nothing is wrong. It has one.
std::string own_certificate_trouble(const TlsContext& client, const std::string& host);

}  // namespace ddprun::security

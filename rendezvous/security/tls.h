// SPDX-License-Identifier: Apache-2.0
// TLS 1.3 for the rendezvous' port: certificates and keys from files. Sees only files.
#pragma once

#include <memory>
#include <string>

namespace ddprun::security {

struct FlaggedContext;                               // tls_context.h
using TlsContext = std::shared_ptr<FlaggedContext>;  // owners: all that use it

struct TlsFiles {
  std::string cert;  // PEM: this side's certificate, then those between it and the authority
  std::string key;   // PEM; hidden from others, as a Secret's file
  std::string ca;    // PEM: authorities that the other side's certificate may come from
  bool verify_client = false;  // the server wants one of the client's
  // What the flags begin with that name these: "--tls" for --tls-cert, --tls-key, --tls-ca. Each
  // line about a file, or about who can't be trusted, names them so.
  std::string flags = "--tls";

  bool any() const { return !cert.empty() || !key.empty() || !ca.empty() || verify_client; }
  bool operator==(const TlsFiles&) const = default;
};

// What OpenSSL frees from now on is wiped: keys leave no trace in a core file, as their numbers are
// in its secure memory. Before anything else of it; later it does nothing.
void wipe_what_is_freed();

// Each throws Error(kInvalidArgument), one line that names flag and file: missing ones, what can't
// be read or is no regular file, a key that isn't the certificate's.
TlsContext make_server_context(const TlsFiles& files);
TlsContext make_client_context(const TlsFiles& files);

// For who serves what it would be a client of: with the certificate and key of `client`, which are
// read once (reading them is most of what a short job pays for TLS). Null: it has none.
TlsContext make_server_context(const TlsContext& client);

// What a client with this context would say of `client`'s own certificate, were it that of a server
// on `host`, a name or an address. Empty: nothing. It has one.
std::string own_certificate_trouble(const TlsContext& client, const std::string& host);

}  // namespace ddprun::security

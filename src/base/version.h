/* base/version.h - of the library, and of what ranks send each other */
#ifndef CDP_SRC_BASE_VERSION_H
#define CDP_SRC_BASE_VERSION_H

#define CDP_VERSION_MAJOR 0
#define CDP_VERSION_MINOR 3
#define CDP_VERSION_PATCH 0
#define CDP_VERSION (CDP_VERSION_MAJOR * 10000 + CDP_VERSION_MINOR * 100 + CDP_VERSION_PATCH)
#define CDP_WIRE_VERSION 5 /* version of the protocol between ranks; compared in handshakes */

#endif /* CDP_SRC_BASE_VERSION_H */

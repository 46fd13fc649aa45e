# For those who have a container engine: docker build -t lockstep . && docker run --rm -it lockstep ./lockstep run 05
# Not tested: where this project is developed there is none.
FROM debian:12
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates git python3 python3-venv
WORKDIR /lockstep
COPY . .
RUN ./lockstep setup && rm -rf /var/lib/apt/lists/*
CMD ["bash"]
